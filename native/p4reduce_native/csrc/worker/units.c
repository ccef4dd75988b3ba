/* SPDX-License-Identifier: Apache-2.0 */
/* Units of a gradient: what is wanted, what is sent of it, and what is kept. */
#include "worker/compress.h"
#include "worker/wide.h"

/* Energies of units, of which a stretch may hold parts. */
struct energies {
    double *next; /* NULL: they are not wanted */
    struct p4r_sums sums;
    uint64_t unit, filled; /* elements of a unit, and of those so far */
};

static void add_energies(struct energies *to, const double *wide, uint64_t count)
{
    if (!to->next)
        return;
    if (to->unit == 1) {
        for (uint64_t i = 0; i < count; i++)
            to->next[i] = wide[i] * wide[i];
        to->next += count;
        return;
    }
    for (uint64_t at = 0; at < count;) {
        uint64_t some = p4r_least(to->unit - to->filled, count - at);
        p4r_add_products(&to->sums, wide + at, wide + at, some, to->filled & 7);
        at += some;
        to->filled += some;
        if (to->filled == to->unit) {
            *to->next++ = p4r_total(&to->sums);
            memset(&to->sums, 0, sizeof to->sums);
            to->filled = 0;
        }
    }
}

static void end_energies(struct energies *to)
{
    if (to->next && to->filled)
        *to->next = p4r_total(&to->sums);
}

int32_t p4r_units_want(uint32_t numbers, const uint8_t *gradient, const uint8_t *residual,
                       uint64_t count, uint64_t unit, uint8_t *wanted, double *own,
                       double *energies, uint8_t *before, double *products)
{
    uint64_t size = p4r_float_bytes(numbers);
    double wide[P4R_STRETCH], other[P4R_STRETCH], past[P4R_STRETCH];
    struct energies of_own = {.next = own, .unit = unit};
    struct energies of_wanted = {.next = energies, .unit = unit};
    struct p4r_sums persistent = {{0}}, waiting = {{0}};

    assert(unit && (wanted || !residual) && (before || !products));
    for (uint64_t first = 0; first < count; first += P4R_STRETCH) {
        uint64_t some = p4r_least(P4R_STRETCH, count - first), at = first * size;
        p4r_widen(numbers, gradient + at, some, wide);
        add_energies(&of_own, wide, some);
        if (residual)
            p4r_widen(numbers, residual + at, some, other);
        if (products) {
            p4r_widen(numbers, before + at, some, past);
            p4r_add_products(&persistent, wide, past, some, 0);
            if (residual)
                p4r_add_products(&waiting, other, wide, some, 0);
        }
        if (before)
            memcpy(before + at, gradient + at, some * size);
        if (residual) {
            for (uint64_t i = 0; i < some; i++)
                wide[i] += other[i];
            p4r_narrow(numbers, wide, some, wanted + at);
        } else if (wanted) {
            memcpy(wanted + at, gradient + at, some * size);
        }
        if (!p4r_all_within(wide, some))
            return 0;
        add_energies(&of_wanted, wide, some);
    }
    end_energies(&of_own);
    end_energies(&of_wanted);
    if (products) {
        products[0] = p4r_total(&persistent);
        products[1] = p4r_total(&waiting);
    }
    return 1;
}

void p4r_units_keep(uint32_t numbers, const uint8_t *wanted, uint64_t count, uint64_t unit,
                    const int64_t *chosen, uint64_t chosen_count, const double *factors,
                    double magnitude, uint8_t *values, uint8_t *nonzero)
{
    uint64_t size = p4r_float_bytes(numbers);
    double wide[P4R_STRETCH];

    for (uint64_t n = 0; n < chosen_count; n++) {
        uint64_t first = (uint64_t)chosen[n] * unit;
        assert(chosen[n] >= 0 && first < count);
        uint64_t end = p4r_least(first + unit, count);
        nonzero[n] = 0;
        for (; first < end; first += P4R_STRETCH) {
            uint64_t some = p4r_least(P4R_STRETCH, end - first), at = first * size;
            p4r_widen(numbers, wanted + at, some, wide);
            if (magnitude != 0)
                for (uint64_t i = 0; i < some; i++)
                    wide[i] = p4r_sign(wide[i]) * magnitude;
            else if (factors)
                for (uint64_t i = 0; i < some; i++)
                    wide[i] *= factors[n];
            p4r_narrow(numbers, wide, some, values + at);
            nonzero[n] |= (uint8_t)p4r_any(wide, some);
        }
    }
}

static void subtract(uint32_t numbers, uint8_t *wanted, const uint8_t *values, uint64_t first,
                     uint64_t end)
{
    uint64_t size = p4r_float_bytes(numbers);
    double wide[P4R_STRETCH], other[P4R_STRETCH];

    for (; first < end; first += P4R_STRETCH) {
        uint64_t some = p4r_least(P4R_STRETCH, end - first), at = first * size;
        p4r_widen(numbers, wanted + at, some, wide);
        p4r_widen(numbers, values + at, some, other);
        for (uint64_t i = 0; i < some; i++)
            wide[i] -= other[i];
        p4r_narrow(numbers, wide, some, wanted + at);
    }
}

void p4r_units_subtract(uint32_t numbers, uint8_t *wanted, const uint8_t *values, uint64_t count,
                        uint64_t unit, const int64_t *chosen, uint64_t chosen_count)
{
    if (!chosen)
        subtract(numbers, wanted, values, 0, count);
    for (uint64_t n = 0; chosen && n < chosen_count; n++) {
        uint64_t first = (uint64_t)chosen[n] * unit;
        assert(chosen[n] >= 0 && first < count);
        subtract(numbers, wanted, values, first, p4r_least(first + unit, count));
    }
}

int32_t p4r_units_look(uint32_t numbers, const uint8_t *base, uint64_t count, uint64_t unit,
                       uint8_t *nonzero)
{
    uint64_t size = p4r_float_bytes(numbers);
    double wide[P4R_STRETCH];
    int all = 1;

    assert(unit);
    for (uint64_t first = 0; first < count; first += unit) {
        uint64_t end = p4r_least(first + unit, count);
        int some_nonzero = 0;
        for (uint64_t at = first; at < end; at += P4R_STRETCH) {
            uint64_t some = p4r_least(P4R_STRETCH, end - at);
            p4r_widen(numbers, base + at * size, some, wide);
            some_nonzero |= p4r_any(wide, some);
            all &= p4r_all_within(wide, some);
        }
        *nonzero++ = (uint8_t)some_nonzero;
    }
    return all;
}

void p4r_units_norms(uint32_t numbers, const uint8_t *base, uint64_t count, uint64_t unit,
                     double *norms, int64_t *nonzero)
{
    uint64_t size = p4r_float_bytes(numbers);
    double wide[P4R_STRETCH];

    assert(unit);
    for (uint64_t first = 0; first < count; first += unit) {
        uint64_t end = p4r_least(first + unit, count);
        struct p4r_sums sums = {{0}};
        int64_t some_nonzero = 0;
        for (uint64_t at = first; at < end; at += P4R_STRETCH) {
            uint64_t some = p4r_least(P4R_STRETCH, end - at);
            p4r_widen(numbers, base + at * size, some, wide);
            for (uint64_t i = 0; i < some; i++) {
                wide[i] = __builtin_fabs(wide[i]);
                some_nonzero += wide[i] > 0;
            }
            p4r_add(&sums, wide, some);
        }
        *norms++ = p4r_total(&sums);
        *nonzero++ = some_nonzero;
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What compressors and hooks do with all numbers of a gradient. Contract with
 * worker/p4reduce/compression/kernels.py; the specification is tests/compression/kernels_spec.py.
 *
 * `numbers` is an enum p4r_numbers. Arrays are flat, of any alignment. Arithmetic is that of the
 * numbers' own type; sums are float64, in eight partial sums: element i goes into number i modulo 8,
 * and in the end ((0 + 4) + (2 + 6)) + ((1 + 5) + (3 + 7)). So all machines find the same bits. */
#ifndef P4R_WORKER_COMPRESS_H
#define P4R_WORKER_COMPRESS_H

#include <stdint.h>

/* -- Units of a gradient (units.c) ------------------------------------------------------------ */

/* What is wanted to be sent: gradient and residual. Each pointer but `gradient` may be NULL.
 *
 * - `wanted` gets the sums, or without a residual the gradient. A residual needs it.
 * - `own` and `energies` get the squared 2-norms of each `unit` elements of the gradient and of what
 *   is wanted; the last unit may be shorter.
 * - `before` is the gradient of the step before, and becomes this one. `products` gets its scalar
 *   product with the gradient, and behind it that of the residual with the gradient.
 *
 * Returns 1, or 0 as soon as something is not finite or 2^128 or more: what was written so far means
 * nothing then. */
int32_t p4r_units_want(uint32_t numbers, const uint8_t *gradient, const uint8_t *residual,
                       uint64_t count, uint64_t unit, uint8_t *wanted, double *own,
                       double *energies, uint8_t *before, double *products);

/* Write what is sent of chosen units into `values`, which holds zeros: the numbers as they are; or
 * multiplied by the unit's entry of `factors`, rounded to the numbers' type; or the signs times
 * `magnitude`, unless that is 0. `nonzero` gets a byte for each chosen unit: whether anything of it
 * is sent. */
void p4r_units_keep(uint32_t numbers, const uint8_t *wanted, uint64_t count, uint64_t unit,
                    const int64_t *chosen, uint64_t chosen_count, const double *factors,
                    double magnitude, uint8_t *values, uint8_t *nonzero);

/* Take what is sent of chosen units from what was wanted. `chosen` may be NULL: all. */
void p4r_units_subtract(uint32_t numbers, uint8_t *wanted, const uint8_t *values, uint64_t count,
                        uint64_t unit, const int64_t *chosen, uint64_t chosen_count);

/* Find the units that are not all zeros: a byte each. Returns whether all numbers are finite, and
 * less than 2^128. */
int32_t p4r_units_look(uint32_t numbers, const uint8_t *base, uint64_t count, uint64_t unit,
                       uint8_t *nonzero);

/* Find the 1-norm of each unit, and how many of its numbers are not zero. */
void p4r_units_norms(uint32_t numbers, const uint8_t *base, uint64_t count, uint64_t unit,
                     double *norms, int64_t *nonzero);

/* -- The largest elements (largest.c) --------------------------------------------------------- */

/* Find the `most` elements of largest magnitude: `places` gets where they are, ascending. Of equal
 * ones the first are taken; NaN is larger than infinity. Integers have 1, 2 or 4 `bytes`. */
void p4r_largest(uint32_t numbers, uint32_t bytes, const uint8_t *base, uint64_t count,
                 uint64_t most, int64_t *places);

/* -- Signs (votes.c) -------------------------------------------------------------------------- */

/* Add a residual, unless it is NULL, and find the signs: 1, -1, or 0 for zero and NaN. `wanted` gets
 * the sums; it is NULL without a residual. `means` gets the mean magnitude of each `shared` numbers,
 * or is NULL. Returns whether all numbers are finite. */
int32_t p4r_votes(uint32_t numbers, const uint8_t *gradient, const uint8_t *residual,
                  uint64_t count, uint64_t shared, uint8_t *wanted, int8_t *votes, float *means);

/* Write the signs of `tallies`, the sums of signs, plus `more`. They have 1 or 2 `bytes`. */
void p4r_votes_majority(uint32_t numbers, const uint8_t *tallies, uint32_t bytes, uint64_t count,
                        double more, uint8_t *result);

/* Turn `tallies` into numbers: each times the mean of its `shared` numbers, over `ranks`. `wanted`
 * becomes what is left: itself minus its sign times the mean. Where that is not finite it stays, and
 * where itself is not finite it becomes `before`, or zero if that is NULL. */
void p4r_votes_settle(uint32_t numbers, uint8_t *wanted, const uint8_t *before, uint64_t count,
                      uint64_t shared, const float *means, const uint8_t *tallies, uint32_t bytes,
                      uint64_t ranks, uint8_t *result);

#endif

// SPDX-License-Identifier: Apache-2.0
// Every operator of P4 on unsigned, signed and wide fields; one result field each.
#include <core.p4>
#include <v1model.p4>

typedef bit<2048> wide_t;

header operands_h { bit<8> a; bit<8> b; bit<32> c; bit<32> d; int<16> s; int<16> t; bit<1> p; bit<1> q; bit<6> pad; }
header wide_h { wide_t x; wide_t y; wide_t mask; }
header results_h {
    bit<8> add; bit<8> sub; bit<8> mul; bit<8> and_; bit<8> or_; bit<8> xor; bit<8> not_; bit<8> neg;
    bit<8> shl; bit<8> shr; bit<8> shl_big; bit<8> sat_add; bit<8> sat_sub;
    bit<16> concat; bit<4> slice; bit<4> low; bit<32> cast_up; bit<8> cast_down; bit<32> mux;
    int<16> s_add; int<16> s_sub; int<16> s_mul; int<16> s_sat_add; int<16> s_sat_sub; int<16> s_neg;
    int<16> s_shr; int<32> s_up; int<8> s_down; bit<16> s_bits; int<16> s_slice;
    bit<1> eq; bit<1> ne; bit<1> lt; bit<1> le; bit<1> gt; bit<1> ge; bit<1> s_lt; bit<1> s_ge;
    bit<1> land; bit<1> lor; bit<1> lnot; bit<1> beq; bit<1> bne; bit<1> nested; bit<1> mixed; bit<1> pad;
    bit<32> expr;
}
header wide_results_h { wide_t sum; wide_t lanes; wide_t overflow; wide_t shifted; }

struct headers_t { operands_h in_; wide_h wide; results_h result; wide_results_h wide_out; }
struct metadata_t { bool flag; bool other; }

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    state start { packet.extract(hdr.in_); packet.extract(hdr.wide); transition accept; }
}
control V(inout headers_t hdr, inout metadata_t meta) { apply { } }
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    apply {
        sm.egress_spec = 1;
        bit<8> a = hdr.in_.a;
        bit<8> b = hdr.in_.b;
        bit<32> c = hdr.in_.c;
        bit<32> d = hdr.in_.d;
        int<16> s = hdr.in_.s;
        int<16> t = hdr.in_.t;
        hdr.result.setValid();
        hdr.result.add = a + b;
        hdr.result.sub = a - b;
        hdr.result.mul = a * b;
        hdr.result.and_ = a & b;
        hdr.result.or_ = a | b;
        hdr.result.xor = a ^ b;
        hdr.result.not_ = ~a;
        hdr.result.neg = -a;
        hdr.result.shl = a << 3;
        hdr.result.shr = a >> 3;
        hdr.result.shl_big = a << b;
        hdr.result.sat_add = a |+| b;
        hdr.result.sat_sub = a |-| b;
        hdr.result.concat = a ++ b;
        hdr.result.slice = a[6:3];
        hdr.result.low = 0;
        hdr.result.low[2:1] = b[1:0];
        hdr.result.cast_up = (bit<32>)a;
        hdr.result.cast_down = (bit<8>)c;
        hdr.result.mux = a < b ? c : d;
        hdr.result.s_add = s + t;
        hdr.result.s_sub = s - t;
        hdr.result.s_mul = s * t;
        hdr.result.s_sat_add = s |+| t;
        hdr.result.s_sat_sub = s |-| t;
        hdr.result.s_neg = -s;
        hdr.result.s_shr = s >> 2;
        hdr.result.s_up = (int<32>)s;
        hdr.result.s_down = (int<8>)s;
        hdr.result.s_bits = (bit<16>)s;
        hdr.result.s_slice = (int<16>)(bit<16>)(s ^ t);
        hdr.result.eq = (bit<1>)(a == b);
        hdr.result.ne = (bit<1>)(a != b);
        hdr.result.lt = (bit<1>)(a < b);
        hdr.result.le = (bit<1>)(a <= b);
        hdr.result.gt = (bit<1>)(a > b);
        hdr.result.ge = (bit<1>)(a >= b);
        hdr.result.s_lt = (bit<1>)(s < t);
        hdr.result.s_ge = (bit<1>)(s >= t);
        meta.flag = (bool)hdr.in_.p;
        meta.other = (bool)hdr.in_.q;
        hdr.result.land = (bit<1>)(meta.flag && meta.other);
        hdr.result.lor = (bit<1>)(meta.flag || meta.other);
        hdr.result.lnot = (bit<1>)(!meta.flag);
        hdr.result.beq = (bit<1>)(meta.flag == meta.other);
        hdr.result.bne = (bit<1>)(meta.flag != (a > b));
        hdr.result.nested = (bit<1>)(meta.flag && (a < b || !(c == d)) || meta.other && s < 0);
        hdr.result.mixed = (bit<1>)((meta.flag ? a : b) > 100);
        hdr.result.pad = 0;
        hdr.result.expr = ((c + d) ^ (c << 7) ^ (d >> 5)) - (c & ~d) * 3;

        wide_t x = hdr.wide.x;
        wide_t y = hdr.wide.y;
        wide_t m = hdr.wide.mask;
        hdr.wide_out.setValid();
        hdr.wide_out.sum = x + y;
        hdr.wide_out.lanes = ((x & ~m) + (y & ~m)) ^ ((x ^ y) & m);
        hdr.wide_out.overflow = ~(x ^ y) & (x ^ hdr.wide_out.lanes) & m;
        hdr.wide_out.shifted = ~(x << 200 | y >> 200);
        hdr.in_.setInvalid();
        hdr.wide.setInvalid();
    }
}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) { apply { } }
control C(inout headers_t hdr, inout metadata_t meta) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;

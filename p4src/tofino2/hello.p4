// SPDX-License-Identifier: Apache-2.0
#ifndef P4REDUCE_HELLO
#define P4REDUCE_HELLO

// Hands HELLOs to the controller, at a rate for each port: see v1model/hello.p4.
control Hello(inout metadata_t meta) {

    @name(".hello_rate")
    Meter<port_t>(PORTS, MeterType_t.PACKETS) rate;

    apply {
        if (rate.execute(meta.ingress_port) == (bit<8>)MeterColor_t.GREEN) {
            meta.port = CPU_PORT;
            meta.outcome = Outcome.HELLO_PUNTED;
        } else {
            meta.outcome = Outcome.HELLO_LIMITED;
        }
    }
}  // control Hello

#endif  // P4REDUCE_HELLO

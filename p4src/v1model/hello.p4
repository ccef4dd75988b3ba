// SPDX-License-Identifier: Apache-2.0
#ifndef P4REDUCE_HELLO
#define P4REDUCE_HELLO

// Hands HELLOs to the controller. Any host can send them, so each port has a rate of
// its own: a flood at one port neither busies the controller nor keeps out the
// workers at other ports.
control Hello(inout metadata_t meta) {

    // Frames. Rate and burst are the controller's to set; until then all pass.
    @name(".hello_rate")
    meter<port_t>(PORTS, MeterType.packets) rate;

    apply {
        bit<2> color;
        rate.execute_meter(meta.ingress_port, color);
        if (color == V1MODEL_METER_COLOR_GREEN) {
            meta.port = CPU_PORT;
            meta.outcome = Outcome.HELLO_PUNTED;
        } else {
            meta.outcome = Outcome.HELLO_LIMITED;
        }
    }
}  // control Hello

#endif  // P4REDUCE_HELLO

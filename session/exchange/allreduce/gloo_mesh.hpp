/* Connects the workers for Gloo: each with every other, their addresses exchanged through
 * the coordinator.
 *
 * As gloo::rendezvous::Context::connectFullMesh, but every wait has an end, and a
 * stranger at the ports does no harm. Each of Gloo's pairs listens at a port of its own
 * and accepts the first connection. When a port scanner comes first, it takes a worker's
 * place, and the worker is refused. So all workers tell each other whether they have
 * connected, and send a byte to each other. When that fails anywhere, all start again, at
 * other ports and under other keys.
 */
#ifndef PS_GLOO_MESH_HPP
#define PS_GLOO_MESH_HPP

extern "C" {
#include "member.h"
}

#include <chrono>
#include <cstdint>
#include <memory>

#include <gloo/context.h>
#include <gloo/transport/device.h>

struct ps_gloo_mesh_options {
    ps_member *member; // borrowed during the call
    int rank, world_size;
    std::shared_ptr<gloo::transport::Device> device;
    int64_t connect_timeout_ms;
    std::chrono::milliseconds call_timeout; // of calls over the connections
};

/* Blocks until all workers are connected. Throws gloo::Exception, which says why not. */
std::shared_ptr<gloo::Context> ps_gloo_mesh_connect(const ps_gloo_mesh_options &options);

#endif

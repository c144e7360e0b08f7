/* Gloo's pairs, made so that no stranger ends the process. A pair accepts the first
 * connection at its port. When that one was reset before Gloo asked for its name, or when
 * it sends a message to a buffer that is not there, Gloo throws on its own thread, where
 * nobody catches: the process would end. Here the pair is broken instead, as after any
 * error of its socket, and whoever uses it gets the exception.
 *
 * Gloo since May 2023 has one port for all pairs of a device and looks at connections
 * before a pair gets them. There its own pairs are taken. */
#ifndef PS_GLOO_PAIRS_HPP
#define PS_GLOO_PAIRS_HPP

#include <chrono>
#include <memory>

#include <gloo/transport/context.h>
#include <gloo/transport/device.h>

/* With a pair for every other rank. timeout: of calls over them. Throws gloo::Exception,
 * also where the device is not one of TCP. */
std::shared_ptr<gloo::transport::Context>
ps_gloo_pairs_create(const std::shared_ptr<gloo::transport::Device> &device, int rank,
                     int size, std::chrono::milliseconds timeout);

#endif

/* All-reduce between CPUs through Gloo, the engine that PyTorch's DDP uses there.
 *
 * The only C++ of the project is behind this C face, and no exception leaves it. Gloo's
 * key-value store for addresses is the coordinator. Without Gloo (PS_WITH_GLOO=OFF) the
 * file is not compiled and the table of exchanges has no "gloo".
 */
#ifndef PS_EXCHANGE_GLOO_H
#define PS_EXCHANGE_GLOO_H

#include "allreduce.h"

extern const ps_exchange_ops ps_exchange_gloo_ops;

#endif

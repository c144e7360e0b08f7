/* All-reduce between CPUs through Gloo, the engine that PyTorch's DDP uses there.
 *
 * The only C++ of the project is behind this C face (with gloo_mesh.hpp, which connects
 * the workers), and no exception leaves it. Without Gloo (PS_WITH_GLOO=OFF) the files are
 * not compiled and the table of exchanges has no "gloo".
 */
#ifndef PS_EXCHANGE_GLOO_H
#define PS_EXCHANGE_GLOO_H

#include "allreduce.h"

extern const ps_exchange_ops ps_exchange_gloo_ops;

#endif

/* All-reduce between GPUs through NCCL, the engine that PyTorch's DDP uses there.
 *
 * libnccl.so.2 is loaded when it is asked for, so that one binary runs everywhere. The
 * communicator is non-blocking: every call returns at once and is watched through
 * ncclCommGetAsyncError and the stream's events until a deadline, then aborted. Sums on a
 * GPU are queued behind the gradients and not waited for, only watched.
 */
#ifndef PS_EXCHANGE_NCCL_H
#define PS_EXCHANGE_NCCL_H

#include "allreduce.h"

extern const ps_exchange_ops ps_exchange_nccl_ops;

#endif

/* The CUDA device's kernels: what each thread computes, as plain inline functions.
 *
 * Images are in PyTorch's order, (N, C, H, W): cuDNN's kernels for exact float32 read
 * this order and would copy any other first. Its kernels for 16 bits read (N, H, W, C):
 * then the channels may be last (cuda_plan.h). In (C, N, H, W) order a convolution would
 * be one matrix product for the whole batch; our own convolutions copy images into that
 * order (cuda_conv_plans.c says where they are used).
 *
 * A flat kernel `name` is a struct of arguments ps_k_name and ps_k_name_at(args, i),
 * called once for each i below the launch's count; no two calls write to the same
 * address. A wide kernel is a flat one whose call does PS_WIDE elements (cuda_values.h);
 * PS_LAUNCH_WIDE launches it. A sum kernel is ps_k_name with ps_k_name_lane(args, block,
 * lane): what the lane adds up, and ps_k_name_done(args, block, sum), called with the
 * lanes' sums combined in a fixed order. A channel kernel is ps_k_name with
 * ps_k_name_lane(args, block, lane, sums): the lane's sums of PS_WIDE channels, and
 * ps_k_name_done(args, block, lane, sums), called for each of the first
 * args->columns.across lanes with the sums of all lanes of the same channels. A team
 * kernel is ps_k_name with ps_k_name_row(args, row, team), what args->lanes lanes do
 * together (cuda_team.h). No kernel has atomics: the same inputs give the same bits.
 *
 * cuda_gpu.cu compiles them for the GPU; the tests run them on the host. */
#ifndef PS_CUDA_KERNELS_H
#define PS_CUDA_KERNELS_H

#include "cuda_batchnorm_kernels.h"
#include "cuda_channel_kernels.h"
#include "cuda_codec_kernels.h"
#include "cuda_groupnorm_kernels.h"
#include "cuda_loss_kernels.h"
#include "cuda_moving_kernels.h"
#include "cuda_optimizer_kernels.h"
#include "cuda_pointwise_kernels.h"
#include "cuda_window_kernels.h"

#define PS_FLAT_KERNELS(X)                                                               \
    X(take)                                                                              \
    X(swap)                                                                              \
    X(turn)                                                                              \
    X(mirror)                                                                            \
    X(pass)                                                                              \
    X(slice)                                                                             \
    X(bias)                                                                              \
    X(act)                                                                               \
    X(act_grad)                                                                          \
    X(sum)                                                                               \
    X(sum_grad)                                                                          \
    X(max_pool)                                                                          \
    X(max_pool_grad)                                                                     \
    X(avg_pool)                                                                          \
    X(avg_pool_grad)                                                                     \
    X(interpolate)                                                                       \
    X(interpolate_grad)                                                                  \
    X(adaptive_max)                                                                      \
    X(adaptive_max_grad)                                                                 \
    X(im2col)                                                                            \
    X(col2im)                                                                            \
    X(dropout)                                                                           \
    X(batchnorm)                                                                         \
    X(batchnorm_grad)                                                                    \
    X(groupnorm)                                                                         \
    X(groupnorm_grad)                                                                    \
    X(column_total)                                                                      \
    X(mix_anchor)                                                                        \
    X(change)                                                                            \
    X(add_arenas)                                                                        \
    X(unscale)                                                                           \
    X(clip)                                                                              \
    X(optimizer)                                                                         \
    X(lamb_update)                                                                       \
    X(lamb_ratio)                                                                        \
    X(lamb_apply)                                                                        \
    X(gradnorm_lane)                                                                     \
    X(gradnorm_block)

#define PS_SUM_KERNELS(X)                                                                \
    X(batchnorm_sums)                                                                    \
    X(batchnorm_stats)                                                                   \
    X(batchnorm_grad_sums)                                                               \
    X(batchnorm_dots)                                                                    \
    X(row_sums)                                                                          \
    X(row_total)                                                                         \
    X(loss)                                                                              \
    X(loss_total)                                                                        \
    X(bad_values)                                                                        \
    X(bad_blocks)                                                                        \
    X(verdict)

#define PS_CHANNEL_KERNELS(X)                                                            \
    X(channel_moments)                                                                   \
    X(channel_dots)

#define PS_TEAM_KERNELS(X)                                                               \
    X(groupnorm_stats)                                                                   \
    X(groupnorm_dots)                                                                    \
    X(groupnorm_means)                                                                   \
    X(groupnorm_scales)                                                                  \
    X(log_softmax)                                                                       \
    X(log_softmax_grad)                                                                  \
    X(code)                                                                              \
    X(loss_rows)                                                                         \
    X(loss_grad)

#define PS_ALL_KERNELS(X)                                                                \
    PS_FLAT_KERNELS(X) PS_SUM_KERNELS(X) PS_CHANNEL_KERNELS(X) PS_TEAM_KERNELS(X)

#endif

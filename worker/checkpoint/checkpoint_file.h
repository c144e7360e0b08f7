/* One checkpoint: a folder of files.
 *
 *   model.safetensors       the weights and buffers, under PyTorch's names
 *   optimizer.safetensors   "<tensor>.exp_avg", ".exp_avg_sq" or ".momentum_buffer", and
 *                           ".step": the steps that the optimizer has made
 *   told.safetensors        with a codec in ps mode: "<tensor>.told", the weights that
 *                           the workers have
 *   local-R.safetensors  with the policy local: "<tensor>.weights" of worker R, and its
 *                       optimizer's state; optimizer.safetensors is the outer one's
 *   feedback-R.safetensors  with a codec that keeps what it has not sent yet (int4,
 *                           onebit, topk): "<tensor>.feedback" of worker R
 *   rows-T-S                with embedding tables: rows of table T from shard S, which
 * its server has written (row_file.h); servers check their checksums when they read them
 *   step-M.rows-T-S         the same with checkpoint.rows_full_every: what the server
 * wrote at step M; of an earlier step all rows, a link, to which those of this step add
 *   manifest.json           written last: size and CRC-32 of every other file, the place
 *                           in the data, the loss scale, and a CRC-32 of itself
 *
 * A folder is whole when its manifest is, and all that it names. */
#ifndef PS_CHECKPOINT_FILE_H
#define PS_CHECKPOINT_FILE_H

#include "snapshot.h"

/* Writes the files into the folder, which exists and is empty, each synced. IO names the
 * file. */
ps_err ps_checkpoint_write(const char *folder, const ps_config *cfg,
                           const ps_snapshot_shape *shape, const ps_snapshot *snapshot);

/* Reads the manifest and checks every file against it, before anything is used. *out is
 * owned by the caller. IO, FORMAT name the file and what is wrong with it. */
ps_err ps_checkpoint_verify(const char *folder, json_t **manifest);

/* Fills a snapshot of rank 0 from a folder that was verified. Another number of workers,
 * another codec, or none, are no error: feedback of worker r becomes that of r modulo the
 * workers there are now. FORMAT, PROTOCOL where model, optimizer or loss scaling are
 * others. */
ps_err ps_checkpoint_read(const char *folder, const json_t *manifest,
                          const ps_snapshot_shape *shape, ps_snapshot *snapshot);

/* Whether a job with cfg may go on from it: ps_config_compare_kept of its manifest. One
 * that another program wrote says nothing about settings. */
ps_err ps_checkpoint_compare(const json_t *manifest, const ps_config *cfg, char *changed,
                             size_t bytes);

#endif

/* A file of scalars that TensorBoard reads: events.out.tfevents.<seconds>.<host>.
 *
 * TFRecords (tensorflow/core/lib/io/record_writer.h), numbers in little-endian order:
 *
 *   u64 length | u32 masked CRC-32C of these 8 bytes | record | u32 its masked CRC-32C
 *
 * The record is a protocol buffer (tensorflow/core/util/event.proto):
 *
 *   Event    1: wall_time (double)  2: step (varint)  3: file_version (text)
 *            5: Summary             7: SessionLog
 *   Summary  1: Value, repeated;  Value  1: tag (text)  2: simple_value (float)
 */
#ifndef PS_EVENT_FILE_H
#define PS_EVENT_FILE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "err.h"

typedef struct ps_event_file {
    FILE *file; // NULL: nothing is written
    bool full;  // the last event was left out
} ps_event_file;

typedef struct ps_event_scalar {
    const char *tag; // at most 63 bytes: "train/loss"
    double value;
} ps_event_scalar;

enum { PS_EVENT_SCALARS_MAX = 16 };

/* Makes a new file in the folder. first_step: the first that it may record;
 * TensorBoard drops what older files of the folder say of it and later ones. */
ps_err ps_event_file_open(ps_event_file *events, const char *folder, uint64_t first_step);
/* One event, n of at most PS_EVENT_SCALARS_MAX scalars. It is in the file at once; where
 * the disk has no room it is left out, and the log says so. */
void ps_event_file_add(ps_event_file *events, uint64_t step,
                       const ps_event_scalar *scalars, int n);
/* IO where the file cannot be closed. Safe on one that is not open. */
ps_err ps_event_file_close(ps_event_file *events);

#endif

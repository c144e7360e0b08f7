/* What a process tells the launcher that has started it, as psrun does: events, one JSON
 * object a line, on a descriptor of its own. The launcher decides by them. The log's
 * lines (log.h) are for people.
 *
 *   {"event":"joined","role":"worker","rank":1,"here":3,"of":4}
 *
 *   any process
 *   begun        the command line is read
 *   missing      role: it has waited in vain for the coordinator, in the process of that
 *                role with rank 0; null: for the others to join
 *   silent       role, rank: the member that gave no sign of life for too long
 *   rejoin       after a failure it joins again
 *   buddies      the servers of its job have each other's rows (rows.buddy)
 *   mended       repeated: a lost connection is there again; how many messages were sent
 *                again
 *   interrupted  signal: it was told to end
 *   failure      kind, passing, reason: it fails; kind as in err.h; passing: it may be
 *                gone when the job is tried again
 *   exception    line: a Python program fails (python/pstrain/_events.py)
 *   exits        a Python program that has ended leaves its job, for which it had not called
 *                pstrain.shutdown() (python/pstrain/_events.py)
 *   ended        code, lacks_memory: the program has ended; of the shell that starts it over ssh
 *                (deploy/psrunlib/remote.py)
 *
 *   a server
 *   waits        role, rank: the job ends, and until now it lacks that worker's gradients
 *                of a step, of which it has others'
 *
 *   the coordinator's
 *   opened       members may join
 *   joined       role, rank, here, of; rank -1: it came without one
 *   unjoined     role, rank: it has gone before all had joined
 *   away         role, rank: the others go on without it
 *   aborts       role, rank: it has ended the job for all
 *
 *   a worker
 *   back         it has come back to a job that has gone on
 *
 *   worker 0
 *   workers      n: of an elastic job
 *   resume       step, steps_lost: where the job goes on; null: not known
 *   checkpoint   step: it has written one
 *   step         step: as often as it shows its progress
 *   commit       number, place: a Python program has kept its state; place: for people
 *   restored     number, place: a Python program goes on from a commit; 0: it begins
 */
#ifndef PS_TELL_H
#define PS_TELL_H

/* where: "7:81234", descriptor 7, and the inode of the pipe (or socket) that it is. The
 * launcher's child may be a shell or a script that has started this process, with another
 * file there, or none: then nothing is told. So it is with NULL. The descriptor is closed
 * when this process starts a program. Any thread may call it. */
void ps_tell_start(const char *where);

/* Tells an event with the fields that json_pack makes of fmt, "{s:s, s:i}". A line has at
 * most PIPE_BUF bytes, and strings are UTF-8: an event that is not so is not told. Never
 * blocks: what a launcher does not read is lost, and one that has ended changes nothing.
 * Any thread may call it. */
void ps_tell(const char *event, const char *fmt, ...);

#endif

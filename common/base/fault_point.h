/* Named moments at which a test kills, stops or holds the process. Only builds with
 * PS_FAULT_POINTS have them, such as that of tests/run; in what people install nothing is
 * left of them. Whole-job tests arm them (Faults in tests/system/jobs.py) by variables
 * of the environment:
 *
 *   PS_TEST_FAULT     "[ROLE@]NAME:N:kill|stop|hold", several with commas between. ROLE
 *                     as in the log ("worker/1"); without it, whoever comes there first.
 *   PS_TEST_FAULT_AT  a folder. Who passes NAME for the N-th time (from 1, counted in
 *                     each process) makes the file NAME there, and is killed, stops, or
 *                     waits until the file NAME.go is there, too. Once: where NAME is
 *                     there already, nothing happens, so a restarted process goes on.
 *
 * ps-world lets processes die at every point. No whole job arms these: chunk.answered,
 * chunk.pushed, job.begun, member.away, order.given, order.taken, rest.begun, rest.left,
 * servers.welcomed, weights.taken. They stand where one member knows something that
 * another one does not know yet, and where a world draws a death more often than at other
 * messages.
 *
 * A text that cannot be read ends the process with a message. */
#ifndef PS_FAULT_POINT_H
#define PS_FAULT_POINT_H

#ifdef PS_FAULT_POINTS
/* Any thread may pass any point. */
void ps_fault_point(const char *name);
#define PS_FAULT_POINT(name) ps_fault_point(name)
#else
#define PS_FAULT_POINT(name) ((void)0)
#endif

#endif

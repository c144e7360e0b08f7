/* Somebody who is no member of the job, on its network: connects to what listens, shows
 * no secret or one of a job that is over, and says what it has heard there: again, cut
 * short or changed. It must get no answer from what is for members only; the job must not
 * notice. */
#ifndef STRANGER_H
#define STRANGER_H

#include <stdint.h>

/* Begins to listen, and comes a few times from now on. gone(arg): it has gone. */
void stranger_come(uint64_t seed, void (*gone)(void *arg), void *arg);

#endif

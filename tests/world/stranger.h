/* A process on the job's network that is no member. It connects to sockets that listen,
 * shows no secret, or one that its owner has replaced since, and sends messages that it
 * has overheard: again, cut short or changed. Sockets for members must not answer it, and
 * the job must not notice it. */
#ifndef STRANGER_H
#define STRANGER_H

#include <stdint.h>

/* Begins to listen, and comes a few times from now on. gone(arg): it has gone. */
void stranger_come(uint64_t seed, void (*gone)(void *arg), void *arg);

#endif

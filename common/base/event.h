/* An event (eventfd): one thread sets it, another has it in its poll set. */
#ifndef PS_EVENT_H
#define PS_EVENT_H

#include "err.h"

typedef struct ps_event { // all zero: no event, on which set, clear and fini do nothing
    int fd_plus_1;        // owned
} ps_event;

/* Not set. IO. */
ps_err ps_event_init(ps_event *event);
/* An event that another process made and passed as a descriptor, which is taken. */
ps_event ps_event_of(int fd);
void ps_event_fini(ps_event *event);

/* Any thread; never blocks. A thread that clears the event sees everything that was
 * written before it was set. */
void ps_event_set(const ps_event *event);
void ps_event_clear(const ps_event *event);

/* For poll sets: readable from set to clear. -1: no event. */
int ps_event_fd(const ps_event *event);

#endif

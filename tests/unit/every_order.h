/* All orders in which something can happen, one after the other. */
#ifndef EVERY_ORDER_H
#define EVERY_ORDER_H

#include "check.h"

enum { CHOICES = 1024 };

/* One order: at each place, which of those that can be next is. */
typedef struct path {
    int choice[CHOICES], among[CHOICES], n;
} path;

/* Which of `among` comes next at a place; behind the path's end the first one. */
static inline int path_pick(path *p, int at, int among)
{
    assert_true(at < CHOICES);
    if (at == p->n) p->choice[p->n++] = 0;
    p->among[at] = among;
    return p->choice[at];
}

/* The next path in order; false after the last one. */
static inline bool path_next(path *p)
{
    while (p->n > 0 && p->choice[p->n - 1] + 1 >= p->among[p->n - 1])
        p->n--;
    if (p->n == 0) return false;
    p->choice[p->n - 1]++;
    return true;
}

#endif

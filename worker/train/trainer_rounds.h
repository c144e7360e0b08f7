/* Rounds of as many steps as fit a worker's own speed (sync.steps_by_speed). Only for
 * trainer_stretch.c. */
#ifndef PS_TRAINER_ROUNDS_H
#define PS_TRAINER_ROUNDS_H

#include "trainer_stretch.h"

/* Before the first step. With other rounds this and what follows do nothing. */
ps_err ps_trainer_rounds_init(ps_trainer *t);

/* Books a step of this rank. */
void ps_trainer_rounds_book(ps_trainer *t, double seconds);

/* A worker that takes a dead one's place: its rounds are those of the others' last
 * agreement. */
ps_err ps_trainer_rounds_take(ps_trainer *t);

/* Whether this rank has just made the steps since the job began or went on after which
 * all agree for the first time. */
bool ps_trainer_rounds_are_new(const ps_trainer *t);

/* After that step, and at rest, all ranks before the next step: agrees on the
 * steps of each rank's rounds, by the speeds measured since the last time or as the log
 * that is repeated says. Servers and log learn of them. */
ps_err ps_trainer_rounds(ps_trainer *t);

#endif

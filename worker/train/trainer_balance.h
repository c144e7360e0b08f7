/* data.batch auto: after each epoch the workers' batches follow their speeds. Only for
 * trainer.c. */
#ifndef PS_TRAINER_BALANCE_H
#define PS_TRAINER_BALANCE_H

#include "trainer_state.h"

/* Makes the batch sizes the trainer's own. In other jobs it does nothing. */
ps_err ps_trainer_balance_init(ps_trainer *t);
/* The largest batch that this rank may get. */
int64_t ps_trainer_balance_most(const ps_trainer *t);
/* All ranks, after an epoch that is not the last: the batches of the next one. */
ps_err ps_trainer_balance(ps_trainer *t);

/* Writes n numbers with commas between them, as many as fit. */
enum { PS_TRAINER_LIST_BYTES = 256 };
void ps_trainer_list(const int64_t *numbers, int n, char text[PS_TRAINER_LIST_BYTES]);

#endif

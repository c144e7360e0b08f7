/* Epochs in which workers go on at their own pace (sync_policy.h). Only for trainer.c. */
#ifndef PS_TRAINER_STRETCH_H
#define PS_TRAINER_STRETCH_H

#include "trainer_state.h"

/* Before the first epoch: tells the servers the policy. With any other policy it does
 * nothing. */
ps_err ps_trainer_stretch_start(ps_trainer *t);

/* An epoch: steps until the servers say that it is over. Then all ranks have the same
 * weights. Each rank takes its own samples of the epoch; one that is fast goes over them
 * again in another order, one that is slow leaves some out. Sets *stop like `agree`. */
ps_err ps_trainer_stretch(ps_trainer *t, bool *stop);

/* The newest figures as a JSON object; NULL: there are none. Owned by the trainer. */
const char *ps_trainer_stretch_figures(const ps_trainer *t);

#endif

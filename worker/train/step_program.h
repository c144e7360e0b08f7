/* The program of a training step: what a session and the configuration say of it. */
#ifndef PS_STEP_PROGRAM_H
#define PS_STEP_PROGRAM_H

#include "device.h"
#include "session.h"

/* Without arenas and batch size. The session has a plan, joined or not; spec is borrowed
 * for the program's life. */
ps_program_options ps_step_program_of(const ps_session *session, const ps_config *config,
                                      const ps_model_spec *spec);

#endif

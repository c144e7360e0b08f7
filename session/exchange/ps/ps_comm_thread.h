/* The communication thread's loop. */
#ifndef PS_COMM_THREAD_H
#define PS_COMM_THREAD_H

/* Takes commands, sends, receives and sleeps until BYE, QUIT or a failure. For
 * pthread_create; comm: a ps_comm. */
void *ps_comm_thread_main(void *comm);

#endif

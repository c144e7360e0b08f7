/* How many files and connections this process may have open. */
#ifndef PS_FD_LIMIT_H
#define PS_FD_LIMIT_H

/* Raises the soft limit to the hard one, which it cannot fail at but by staying as it is.
 * The usual 1,024 are for programs that call select(); a server of 4 shards has as many
 * connections with 256 workers, and libzmq aborts at some of the calls that find none
 * free. Called once by a main function. */
void ps_fd_limit_raise(void);

#endif

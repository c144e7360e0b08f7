/* Addresses of a host name, within a deadline. */
#ifndef PS_LOOKUP_H
#define PS_LOOKUP_H

#include <netdb.h>

#include "clock.h"
#include "err.h"

/* Looks a name or an address up for TCP; the caller frees *out with freeaddrinfo.
 * getaddrinfo(3) waits for name servers as long as resolv.conf says (half a minute if
 * none answers) and cannot be stopped. So it runs on a thread of its own, which is
 * abandoned when the deadline passes (TIMEOUT) or a signal comes (INTERRUPTED). NET when
 * the name does not resolve. */
ps_err ps_lookup(const char *host, ps_deadline deadline, struct addrinfo **out);

#endif

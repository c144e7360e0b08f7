#include "role.h"

const char *ps_role_name(ps_role role)
{
    return role == PS_ROLE_SERVER ? "server" : "worker";
}

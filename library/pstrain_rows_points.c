#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "pstrain_state.h"

static ps_err points_open(pstrain_session *s)
{
    if (s->points) return PS_OK;
    return ps_rows_points_create(s->own.rows, (uint32_t)s->own.n_rows,
                                 ps_session_plan(s->session)->n_shards, &s->points);
}

static ps_err points_check(const pstrain_rows_point *p)
{
    const char *why = NULL;
    if (!p || p->struct_size < sizeof *p)
        why = "struct_size is not sizeof(pstrain_rows_point)";
    else if (p->point == 0 || p->point > INT64_MAX)
        why = "point is not a number from 1 to 2^63 - 1";
    else if (p->writes < PSTRAIN_ROWS_WRITE_NONE ||
             p->writes > PSTRAIN_ROWS_WRITE_CHANGES)
        why = "writes is not one of pstrain_rows_writes";
    else if (p->writes != PSTRAIN_ROWS_WRITE_NONE &&
             (!p->folder || p->folder[0] != '/' || !p->name || !p->name[0] ||
              strchr(p->name, '/') || strlen(p->name) > NAME_MAX / 3))
        why = "files need a folder from / on, and a short name without /";
    return why ? ps_err_set(PS_ERR_ARG, "pstrain_rows_keep: %s", why) : PS_OK;
}

static ps_err rows_keep_point(pstrain_session *s, pstrain_rows_point *p)
{
    PS_TRY(points_check(p));
    PS_TRY(points_open(s));
    const ps_rows_point what = {.point = p->point,
                                .step = pstrain_rows_steps(s),
                                .writes = (ps_row_writes)p->writes,
                                .folder = p->folder,
                                .name = p->name};
    free(s->manifest);
    s->manifest = NULL;
    PS_TRY(ps_rows_points_set(s->points, s->session, &what, &s->manifest, &p->fault));
    p->manifest = s->manifest;
    return PS_OK;
}

int pstrain_rows_keep(pstrain_session *s, pstrain_rows_point *point)
{
    PSTRAIN_ROWS_CALL(s, rows_keep_point(s, point));
}

static ps_err rows_return_to(pstrain_session *s, const char *folder, const char *manifest)
{
    ps_row_manifest m;
    if (!folder || !manifest)
        return ps_err_set(PS_ERR_ARG, "pstrain_rows_return: folder or manifest is NULL");
    PS_TRY(points_open(s));
    PS_TRY(ps_rows_points_return_all(s->points, s->session, folder, manifest));
    PS_TRY(ps_row_manifest_read(manifest, strlen(manifest), &m));
    const uint64_t step = m.step;
    ps_row_manifest_fini(&m);
    return ps_row_client_set_step(s->rows, step);
}

int pstrain_rows_return(pstrain_session *s, const char *folder, const char *manifest)
{
    PSTRAIN_ROWS_CALL(s, rows_return_to(s, folder, manifest));
}

int pstrain_rows_kept(pstrain_session *s, uint64_t point, int *kept)
{
    bool has = false;
    const ps_err entered =
        pstrain_enter(s, PSTRAIN_LANE_MAIN, PS_IN_MEMBER, "pstrain_rows_kept");
    if (entered != PS_OK) return (int)entered;
    ps_err err = kept ? PS_OK : ps_err_set(PS_ERR_ARG, "pstrain_rows_kept: kept is NULL");
    const ps_deadline deadline = ps_config_join_deadline(&s->config);
    if (err == PS_OK)
        err = ps_rows_point_is_kept(s->member, s->servers, point, deadline, &has);
    if (err == PS_OK) *kept = has;
    return pstrain_leave(s, PSTRAIN_LANE_MAIN, err);
}

/* libpstrain: calls that other threads may make while one opens or closes a table. Fault
 * points hold them in the middle. */
#include "check.h"
#include "pstrain_rig.h"
#include "temp_files.h"

enum { COUNT = 20000 };

static bool is_there(const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder.path, name);
    return access(path, F_OK) == 0;
}

static void await_point(const char *name)
{
    for (int i = 0; !is_there(name); i++) {
        assert_in_range(i, 0, 20000);
        usleep(1000);
    }
}

static void let_go(const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s.go", folder.path, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fclose(f);
}

/* --- opening ----------------------------------------------------------------------- */

static void *share_main(void *arg)
{
    rig_worker *w = arg;
    uint8_t bytes[1000] = {(uint8_t)(w->rank == 0)};
    await_point("settings.load");
    int status = pstrain_broadcast(w->s, bytes, sizeof bytes, 0);
    if (status) fprintf(stderr, "worker %d: %s\n", w->rank, pstrain_error());
    if (!status && bytes[0] != 1) status = PSTRAIN_ERR_INTERNAL;
    let_go("settings.load");
    return (void *)(intptr_t)status;
}

static int open_table(rig_worker *w)
{
    static const int64_t shape[] = {COUNT};
    const pstrain_tensor tensor = {.name = "a", .shape = shape, .n_dims = 1};
    const pstrain_table table = {.struct_size = sizeof table,
                                 .tensors = &tensor,
                                 .n_tensors = 1,
                                 .tensor_size = sizeof tensor};
    RIG_TRY(pstrain_open(w->s, &table));
    memset(pstrain_params(w->s), 0, pstrain_arena_count(w->s) * sizeof(float));
    return pstrain_start(w->s);
}

static int open_while_others_share(rig_worker *w)
{
    pthread_t thread;
    void *status;
    assert_int_equal(pthread_create(&thread, NULL, share_main, w), 0);
    const int opened = open_table(w);
    pthread_join(thread, &status);
    RIG_TRY((int)(intptr_t)status);
    return opened;
}

/* --- closing ----------------------------------------------------------------------- */

static void *watch_main(void *arg)
{
    rig_worker *w = arg;
    pstrain_stats stats = {.struct_size = sizeof stats};
    return (void *)(intptr_t)pstrain_stats_get(w->s, &stats);
}

/* Long enough for a close that does not wait for the other thread. */
static void *release_main(void *arg)
{
    (void)arg;
    usleep(100000);
    let_go("figures.read");
    return NULL;
}

static int close_while_watched(rig_worker *w)
{
    pthread_t watcher, releaser;
    pstrain_arenas *old = NULL;
    void *status;
    if (w->rank == 1) RIG_TRY(pstrain_close_table(w->s, &old));
    if (w->rank == 1) pstrain_arenas_free(&old);
    if (w->rank == 1) return 0;
    assert_int_equal(pthread_create(&watcher, NULL, watch_main, w), 0);
    await_point("figures.read");
    assert_int_equal(pthread_create(&releaser, NULL, release_main, NULL), 0);
    const int closed = pstrain_close_table(w->s, &old);
    pthread_join(watcher, &status);
    pthread_join(releaser, NULL);
    pstrain_arenas_free(&old);
    RIG_TRY((int)(intptr_t)status);
    return closed;
}

static int run(rig_worker *w)
{
    RIG_TRY(open_while_others_share(w));
    RIG_TRY(close_while_watched(w));
    return pstrain_close(w->s);
}

IN_FOLDER(test_tables_come_and_go_beside_other_calls)
{
    setenv("PS_TEST_FAULT", "settings.load:1:hold,figures.read:1:hold", 1);
    setenv("PS_TEST_FAULT_AT", folder.path, 1);
    rig_run(&(rig){.servers = 1, .workers = 2, .run = run});
}

int main(int argc, char **argv)
{
#ifndef PS_FAULT_POINTS
    return check_skipped("this build has no fault points (PS_FAULT_POINTS)");
#endif
    return check_main(argc, argv, 1);
}

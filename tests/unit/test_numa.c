/* A process on the node of its GPU: as a made-up /sys describes them, on this machine's
 * own cores. */
#include "numa.h"

#include <linux/mempolicy.h>
#include <pthread.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "procstat.h"

#define PCI "bus/pci/devices/0000:3b:00.0"

static char sys_folder[] = "/tmp/pstrain-numa-XXXXXX";

static void numa_write(const char *name, const char *text)
{
    char path[512], *slash;
    snprintf(path, sizeof path, "%s/%s", sys_folder, name);
    for (slash = path + strlen(sys_folder) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        mkdir(path, 0700);
        *slash = '/';
    }
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f, "%s\n", text);
    fclose(f);
}

/* The GPU is on node 0 with those cores; node 1 has the others. */
static void numa_describe(const char *gpu, const char *nodes, const char *online,
                          const char *cores)
{
    numa_write(PCI "/numa_node", gpu);
    numa_write("devices/system/node/online", nodes);
    numa_write("devices/system/cpu/online", online);
    numa_write("devices/system/node/node0/cpulist", cores);
}

static int numa_make(void **state)
{
    strcpy(sys_folder + strlen(sys_folder) - 6, "XXXXXX");
    return mkdtemp(sys_folder) ? 0 : -1;
}

static int numa_remove(void **state)
{
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", sys_folder);
    return system(command);
}

#define NUMA_TEST(name) TEST_WITH(name, numa_make, numa_remove)

NUMA_TEST(the_node_is_found)
{
    ps_numa numa;
    assert_false(ps_numa_of_pci(sys_folder, "0000:3B:00.0", &numa)); // no such device
    numa_describe("0", "0-1", "0-95", "0-23,48-71");
    assert_true(ps_numa_of_pci(sys_folder, "0000:3B:00.0", &numa)); // as CUDA writes it
    assert_int_equal(numa.node, 0);
    assert_int_equal(numa.n_nodes, 2);
    assert_string_equal(numa.cores, "0-23,48-71");
    assert_string_equal(numa.address, "0000:3b:00.0");
}

NUMA_TEST(nothing_where_there_is_nothing_to_choose)
{
    ps_numa numa;
    numa_describe("0", "0", "0-95", "0-95");
    assert_false(ps_numa_of_pci(sys_folder, "0000:3b:00.0", &numa)); // one node
    numa_describe("-1", "0-1", "0-95", "0-47");
    assert_false(ps_numa_of_pci(sys_folder, "0000:3b:00.0", &numa)); // not known
    numa_describe("0", "0-1", "0-95", "");
    assert_false(ps_numa_of_pci(sys_folder, "0000:3b:00.0", &numa)); // without cores
    numa_describe("70000", "0-1", "0-95", "0-47");
    assert_false(ps_numa_of_pci(sys_folder, "0000:3b:00.0", &numa));
}

/* Of this process, as a list; *one: its last core. */
static void numa_own(char *list, size_t bytes, char *one)
{
    cpu_set_t own;
    list[0] = '\0';
    assert_int_equal(sched_getaffinity(0, sizeof own, &own), 0);
    for (int core = 0; core < CPU_SETSIZE; core++) {
        if (!CPU_ISSET(core, &own)) continue;
        snprintf(one, 16, "%d", core);
        snprintf(list + strlen(list), bytes - strlen(list), "%s%d", list[0] ? "," : "",
                 core);
    }
}

static pthread_barrier_t met;

static void *numa_other_thread(void *arg)
{
    pthread_barrier_wait(&met);
    pthread_barrier_wait(&met); // bound
    assert_int_equal(sched_getaffinity(0, sizeof(cpu_set_t), arg), 0);
    return NULL;
}

/* What a thread that began earlier, this one, and the memory say. In a process of its
 * own: it stays bound. */
static void numa_check_bound(const ps_numa *numa, const char *one)
{
    pthread_t thread;
    cpu_set_t here, there;
    bool memory;
    int mode = -1;
    unsigned long nodes[16] = {0};
    pthread_barrier_init(&met, NULL, 2);
    assert_int_equal(pthread_create(&thread, NULL, numa_other_thread, &there), 0);
    pthread_barrier_wait(&met);
    assert_int_equal(ps_numa_bind(numa, &memory), PS_NUMA_BOUND);
    pthread_barrier_wait(&met);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(sched_getaffinity(0, sizeof here, &here), 0);
    assert_true(CPU_EQUAL(&here, &there));
    assert_int_equal(CPU_COUNT(&here), 1);
    assert_true(CPU_ISSET(atoi(one), &here));
    if (!memory) return; // a container may not say where memory is to be
    assert_int_equal(syscall(SYS_get_mempolicy, &mode, nodes, 1024, NULL, 0), 0);
    assert_int_equal(mode, MPOL_PREFERRED);
    assert_int_equal(nodes[0], 1);
}

NUMA_TEST(the_whole_process_is_bound)
{
    char all[4096], one[16] = "";
    ps_numa numa;
    int status = -1;
    numa_own(all, sizeof all, one);
    numa_describe("0", "0-1", all, one);
    assert_true(ps_numa_of_pci(sys_folder, "0000:3b:00.0", &numa));
    const pid_t child = fork();
    if (child == 0) {
        numa_check_bound(&numa, one);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

/* What the system says of memory that was there before. */
TEST(memory_moves)
{
    const ps_numa numa = {.node = 0};
    unsigned char *at = NULL;
    int mode = -1;
    assert_int_equal(posix_memalign((void **)&at, 4096, 3 * 4096), 0);
    memset(at, 7, 3 * 4096);
    if (ps_numa_move(&numa, at, 2 * 4096 + 1)) { // a container may not
        for (int page = 0; page < 3; page++) {
            unsigned long nodes[16] = {0};
            assert_int_equal(syscall(SYS_get_mempolicy, &mode, nodes, 1024,
                                     at + page * 4096, MPOL_F_ADDR),
                             0);
            assert_int_equal(mode, MPOL_PREFERRED);
            assert_int_equal(nodes[0], 1);
        }
    }
    for (int i = 0; i < 3 * 4096; i++)
        assert_int_equal(at[i], 7);
    free(at);
    assert_false(ps_numa_move(&numa, (void *)1, 1)); // no page
}

NUMA_TEST(who_is_bound_already_stays_so)
{
    char all[4096], one[16] = "", more[4200];
    ps_numa numa;
    cpu_set_t before, after;
    bool memory = true;
    numa_own(all, sizeof all, one);
    snprintf(more, sizeof more, "%s,1023", all); // one that this process may not use
    numa_describe("0", "0-1", more, one);
    assert_true(ps_numa_of_pci(sys_folder, "0000:3b:00.0", &numa));
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    assert_int_equal(ps_numa_bind(&numa, &memory), PS_NUMA_WAS_BOUND);
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_true(CPU_EQUAL(&before, &after));
    assert_false(memory);
}

/* The configuration reader: any bytes as a file. The first line, when it starts with
 * "#set ", is given as an override too. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[32], set[256];
    const char *sets[] = {set};
    int n_sets = 0;
    ps_config cfg;
    if (size > 5 && memcmp(data, "#set ", 5) == 0) {
        size_t n = 0;
        while (5 + n < size && data[5 + n] != '\n' && n < sizeof set - 1)
            n++;
        memcpy(set, data + 5, n);
        set[n] = '\0';
        n_sets = 1;
    }
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size) abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (ps_config_load(&cfg, path, sets, n_sets) == PS_OK) {
        volatile uint64_t h = ps_config_hash(&cfg);
        (void)h;
    }
    ps_config_fini(&cfg);
    close(fd);
    return 0;
}

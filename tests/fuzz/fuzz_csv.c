/* The reader of tables: any bytes as a file. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "csv.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_as(const uint8_t *data, size_t size, const ps_wanted *wanted)
{
    char *text = malloc(size + 1);
    ps_dataset set = {0};
    if (text == NULL) abort();
    memcpy(text, data, size);
    text[size] = '\0';
    if (ps_csv_parse("fuzz", text, size, wanted, &set) == PS_OK && set.n > 0) {
        if (ps_dataset_check(&set, 0, wanted) != PS_OK) abort();
        if (ps_dataset_slice(&set, 0, 0) != PS_OK) abort();
    }
    ps_dataset_fini(&set);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const ps_wanted classes = {0}, number = {.numbers = true, .n = 1};
    const ps_wanted nothing = {.nothing = true};
    read_as(data, size, &classes);
    read_as(data, size, &number);
    read_as(data, size, &nothing);
    return 0;
}

/* The reader of tables: any bytes as a file. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "csv.h"
#include "table_fit.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char *copy_text(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    if (text == NULL) abort();
    memcpy(text, data, size);
    text[size] = '\0';
    return text;
}

/* A table that can be read can be fitted, and read again by what was fitted. */
static void read_as(const uint8_t *data, size_t size, const ps_config_data *config,
                    const ps_wanted *wanted)
{
    ps_csv_options o = {.data = config, .wanted = wanted, .keys = true};
    ps_preprocessing *state = NULL;
    ps_table table;
    ps_dataset set = {0};
    char *text = copy_text(data, size), *saved = NULL;
    float row[4096];
    const ps_cell *cells;
    ps_err err = ps_csv_parse("fuzz", text, size, &o, &table);
    if (err == PS_OK) err = ps_table_fit(&table, config, wanted, &state);
    if (err == PS_OK && ps_table_samples(&table, state, &set) != PS_OK) abort();
    ps_table_fini(&table);
    free(text);
    if (err == PS_OK) {
        if (ps_preprocessing_text(state, &saved) != PS_OK) abort();
        if (ps_table_row(set.table, set.n - 1, NULL, &cells) != PS_OK) abort();
        if (state->n_inputs <= 4096) ps_preprocessing_row(state, cells, row);
        text = copy_text(data, size);
        o.known = state;
        if (ps_csv_parse("fuzz", text, size, &o, &table) != PS_OK) abort();
        free(text);
        ps_table_fini(&table);
    }
    free(saved);
    ps_dataset_fini(&set);
    ps_preprocessing_destroy(&state);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const ps_wanted classes = {0}, number = {.numbers = true, .n = 1};
    const ps_wanted nothing = {.nothing = true};
    ps_config_data config = {.target = (char *)"",
                             .columns = (char *)"",
                             .drop = (char *)"",
                             .categories = (char *)"",
                             .test_by = (char *)"random",
                             .standardize = true};
    read_as(data, size, &config, &classes);
    read_as(data, size, &config, &number);
    read_as(data, size, &config, &nothing);
    config.target = (char *)"a\n";
    config.drop = (char *)"id\n";
    config.missing = size % 2 ? PS_MISSING_MEAN : PS_MISSING_OWN;
    if (size % 3 == 0) config.drop = (char *)"";
    read_as(data, size, &config, &classes);
    read_as(data, size, &config, &number);
    return 0;
}

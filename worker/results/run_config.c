#include "run_config.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "data_files.h"
#include "printable.h"
#include "value_json.h"

static const char CONFIG[] = "config.json", CLASSES[] = "classes.txt";

enum { LINE_BYTES = 2048 };

/* The map at key, which is made where it is missing. */
static json_t *run_config_section(json_t *config, const char *key)
{
    json_t *section = json_object_get(config, key);
    if (json_is_object(section)) return section;
    json_object_set_new(config, key, json_object());
    return json_object_get(config, key);
}

static void set_data_path(json_t *config, const ps_config *cfg)
{
    char *folder, whole[PATH_MAX];
    if (ps_data_is_made(cfg->data.kind) ||
        ps_data_folder(cfg->data.path, cfg->file, &folder) != PS_OK)
        return;
    if (realpath(folder, whole))
        json_object_set_new(run_config_section(config, "data"), "path",
                            json_string(whole));
    free(folder);
}

static void set_list(json_t *config, const char *key, const ps_int_list *from)
{
    json_t *list = json_array();
    for (int i = 0; i < from->n; i++)
        json_array_append_new(list, json_integer((json_int_t)from->v[i]));
    json_object_set_new(run_config_section(config, "model"), key, list);
}

/* NULL: no memory. */
static json_t *run_config_json(const ps_config *cfg)
{
    json_t *config = ps_yaml_json(cfg->tree);
    if (!config) return NULL;
    json_object_set_new(run_config_section(config, "job"), "name",
                        json_string(cfg->job.name));
    json_object_del(run_config_section(config, "train"),
                    "init"); // the run has its own weights
    set_list(config, "input", &cfg->model.input);
    if (cfg->model.categories.n > 0)
        set_list(config, "categories", &cfg->model.categories);
    set_data_path(config, cfg);
    return config;
}

static ps_err run_config_write_file(const ps_config *cfg, const ps_run_dir *dir)
{
    ps_out_file file = {0};
    json_t *config = run_config_json(cfg);
    if (!config) return ps_err_set(PS_ERR_NOMEM, "no memory for %s", CONFIG);
    ps_err err = ps_out_file_open(&file, dir, CONFIG, true);
    if (err == PS_OK) {
        const int failed = json_dumpf(config, file.file, JSON_INDENT(1));
        fputc('\n', file.file);
        err = failed ? ps_err_set(PS_ERR_IO, "cannot write %s", file.path)
                     : ps_out_file_keep(&file);
        ps_out_file_drop(&file);
    }
    json_decref(config);
    return err;
}

bool ps_run_config_is_of(const ps_config *config, const char *run_dir)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", run_dir, CONFIG);
    json_t *now = run_config_json(config), *then = json_load_file(path, 0, NULL);
    const bool same = now && then && json_equal(now, then);
    json_decref(now);
    json_decref(then);
    return same;
}

static ps_err write_classes(const ps_class_names *names, const ps_run_dir *dir)
{
    char line[LINE_BYTES];
    ps_out_file file = {0};
    PS_TRY(ps_out_file_open(&file, dir, CLASSES, true));
    for (int64_t i = 0; i < names->n; i++) {
        ps_printable(names->names[i], line, sizeof line); // names of folders may be any
        fprintf(file.file, "%s\n", line[0] ? line : "-"); // an empty line ends the list
    }
    return ps_out_file_keep(&file);
}

ps_err ps_run_config_write(const ps_config *config, const ps_class_names *names,
                           const ps_run_dir *dir)
{
    PS_TRY(run_config_write_file(config, dir));
    return names->n > 0 ? write_classes(names, dir) : PS_OK;
}

ps_err ps_run_config_classes(const ps_config *config, ps_class_names *out)
{
    const char *slash = strrchr(config->file, '/');
    const int n = slash ? (int)(slash - config->file + 1) : 0;
    char path[PATH_MAX];
    *out = (ps_class_names){0};
    if (strcmp(config->file + n, CONFIG) != 0) return PS_OK;
    snprintf(path, sizeof path, "%.*s%s", n, config->file, CLASSES);
    return access(path, F_OK) == 0 ? ps_class_names_read(path, out) : PS_OK;
}

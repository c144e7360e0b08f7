#include "image_folder.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "data_files.h"
#include "first_names.h"
#include "mem.h"

enum { MAX_DEPTH = 32 }; // of folders within a class; a link may lead in a circle

typedef struct name_list {
    size_t n;
    uint32_t room;
    char **names; // owned, each of its own
} name_list;

static void name_list_fini(name_list *list)
{
    for (size_t i = 0; i < list->n; i++)
        free(list->names[i]);
    free(list->names);
    memset(list, 0, sizeof *list);
}

/* Takes name. */
static ps_err add_name(name_list *list, char *name)
{
    const ps_err err = ps_mem_room(&list->names, (uint32_t)list->n, &list->room,
                                   sizeof *list->names, "the list of pictures");
    if (err != PS_OK) {
        free(name);
        return err;
    }
    list->names[list->n++] = name;
    return PS_OK;
}

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void sort_names(const name_list *list)
{
    if (list->n > 1) qsort(list->names, list->n, sizeof *list->names, by_bytes);
}

static ps_err image_folder_join(const char *folder, const char *name, char **out)
{
    if (asprintf(out, "%s/%s", folder, name) >= 0) return PS_OK;
    *out = NULL;
    return ps_err_set(PS_ERR_NOMEM, "%s: no memory", folder);
}

static bool is_picture(const char *name)
{
    const char *ending = strrchr(name, '.');
    return ending != NULL &&
           (strcasecmp(ending, ".png") == 0 || strcasecmp(ending, ".jpg") == 0 ||
            strcasecmp(ending, ".jpeg") == 0 || strcasecmp(ending, ".webp") == 0 ||
            strcasecmp(ending, ".bmp") == 0);
}

/* Names in a folder. others: files that are neither hidden nor pictures. */
typedef struct listing {
    name_list folders, pictures, others;
} listing;

static void listing_fini(listing *in)
{
    name_list_fini(&in->folders);
    name_list_fini(&in->pictures);
    name_list_fini(&in->others);
}

static ps_err list_entry(const char *folder, const struct dirent *e, listing *in)
{
    char *path = NULL, *name = NULL;
    if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) return PS_OK;
    PS_TRY(image_folder_join(folder, e->d_name, &path));
    name_list *list = ps_data_is_folder(path) ? &in->folders
                      : is_picture(e->d_name) ? &in->pictures
                      : e->d_name[0] != '.'   ? &in->others
                                              : NULL;
    free(path);
    if (list == NULL) return PS_OK;
    PS_TRY(ps_mem_strdup(&name, e->d_name));
    return add_name(list, name);
}

static ps_err list_folder(const char *folder, listing *in)
{
    DIR *dir = opendir(folder);
    ps_err err = PS_OK;
    if (dir == NULL) return ps_err_errno(PS_ERR_IO, "%s", folder);
    while (err == PS_OK) {
        errno = 0;
        const struct dirent *e = readdir(dir);
        if (e == NULL && errno != 0) err = ps_err_errno(PS_ERR_IO, "%s", folder);
        if (e == NULL) break;
        err = list_entry(folder, e, in);
    }
    closedir(dir);
    sort_names(&in->folders);
    sort_names(&in->pictures);
    sort_names(&in->others);
    return err;
}

/* Adds the folder and all folders within it. */
static ps_err add_tree(const char *folder, int depth, name_list *tree)
{
    listing in = {0};
    char *path = NULL;
    if (depth > MAX_DEPTH)
        return ps_err_set(PS_ERR_IO,
                          "%s: folders within %d folders; does a link lead in a circle?",
                          folder, MAX_DEPTH);
    PS_TRY(ps_mem_strdup(&path, folder));
    PS_TRY(add_name(tree, path));
    ps_err err = list_folder(folder, &in);
    for (size_t i = 0; i < in.folders.n && err == PS_OK; i++) {
        err = image_folder_join(folder, in.folders.names[i], &path);
        if (err == PS_OK) err = add_tree(path, depth + 1, tree);
        free(path);
    }
    listing_fini(&in);
    return err;
}

/* What has been found so far. */
typedef struct found {
    name_list files;
    size_t left_out;               // files
    char *first;                   // of them; owned
    ps_first_names empty, unknown; // folders without pictures; of no class
} found;

static void found_fini(found *f)
{
    name_list_fini(&f->files);
    free(f->first);
}

static ps_err leave_out(const char *folder, const name_list *names, found *f)
{
    if (f->left_out == 0 && names->n > 0)
        PS_TRY(image_folder_join(folder, names->names[0], &f->first));
    f->left_out += names->n;
    return PS_OK;
}

static ps_err add_pictures(const char *folder, found *f)
{
    listing in = {0};
    char *path = NULL;
    ps_err err = list_folder(folder, &in);
    for (size_t i = 0; i < in.pictures.n && err == PS_OK; i++) {
        err = image_folder_join(folder, in.pictures.names[i], &path);
        if (err == PS_OK) err = add_name(&f->files, path);
    }
    if (err == PS_OK) err = leave_out(folder, &in.others, f);
    listing_fini(&in);
    return err;
}

/* Adds the pictures of a folder and of all folders within it. */
static ps_err add_class(const char *folder, found *f)
{
    const size_t before = f->files.n;
    name_list tree = {0};
    ps_err err = add_tree(folder, 0, &tree);
    sort_names(&tree);
    for (size_t i = 0; i < tree.n && err == PS_OK; i++)
        err = add_pictures(tree.names[i], f);
    name_list_fini(&tree);
    if (err == PS_OK && f->files.n == before) ps_first_names_add(&f->empty, "%s", folder);
    return err;
}

/* FORMAT where a class has no pictures. */
static ps_err check_empty(found *f)
{
    if (f->empty.n == 0) return PS_OK;
    return ps_err_set(PS_ERR_FORMAT, "%s %s no pictures (.png, .jpg, .jpeg, .webp, .bmp)",
                      ps_first_names_text(&f->empty), f->empty.n == 1 ? "has" : "have");
}

static ps_err set_labels(ps_dataset *out, size_t first, size_t n, int32_t label)
{
    int32_t *labels = realloc(out->labels, (first + n) * sizeof *labels);
    if (labels == NULL)
        return ps_err_set(PS_ERR_NOMEM, "no memory for the labels of %zu pictures",
                          first + n);
    out->labels = labels;
    for (size_t i = first; i < first + n; i++)
        labels[i] = label;
    return PS_OK;
}

/* known: the classes. */
static ps_err list_class(const char *split, const name_list *known, const char *name,
                         found *f, ps_dataset *out)
{
    const size_t before = f->files.n;
    char *path = NULL;
    char **at = bsearch(&name, known->names, known->n, sizeof *known->names, by_bytes);
    if (at == NULL) {
        ps_first_names_add(&f->unknown, "%s", name);
        return PS_OK;
    }
    PS_TRY(image_folder_join(split, name, &path));
    ps_err err = add_class(path, f);
    free(path);
    if (err == PS_OK)
        err = set_labels(out, before, f->files.n - before, (int32_t)(at - known->names));
    return err;
}

static ps_err check_classes_of_folder(const char *split, const char *classes, found *f)
{
    if (f->unknown.n == 0) return check_empty(f);
    return ps_err_set(PS_ERR_FORMAT,
                      "%s has classes that %s does not have: %s; give both the same "
                      "folders",
                      split, classes, ps_first_names_text(&f->unknown));
}

/* Moves the names. */
static void give_names(name_list *list, ps_class_names *out)
{
    *out = (ps_class_names){.n = (int64_t)list->n, .names = list->names};
    *list = (name_list){0};
}

/* The pictures beside the folders of a split are of no class. */
static ps_err leave_out_loose(const char *split, const listing *in, found *f)
{
    PS_TRY(leave_out(split, &in->pictures, f));
    return leave_out(split, &in->others, f);
}

static ps_err list_classes(const char *split, const char *classes, found *f,
                           ps_dataset *out)
{
    listing in = {0}, known = {0};
    ps_err err = list_folder(classes, &known);
    if (err == PS_OK) err = list_folder(split, &in);
    if (err == PS_OK && (in.folders.n == 0 || known.folders.n == 0))
        err = ps_err_set(PS_ERR_FORMAT,
                         "%s has no folders: the pictures of a class stand in a folder "
                         "of the class's name",
                         in.folders.n == 0 ? split : classes);
    if (err == PS_OK) err = leave_out_loose(split, &in, f);
    for (size_t i = 0; i < in.folders.n && err == PS_OK; i++)
        err = list_class(split, &known.folders, in.folders.names[i], f, out);
    if (err == PS_OK) err = check_classes_of_folder(split, classes, f);
    give_names(&known.folders, &out->names);
    listing_fini(&in);
    listing_fini(&known);
    return err;
}

/* Moves the files. */
static ps_err give_files(ps_err err, found *f, ps_dataset *out)
{
    if (err == PS_OK && f->left_out > 0)
        err = ps_dataset_note(
            &out->doubts,
            "files that are left out: %zu, such as %s; pictures end in "
            ".png, .jpg, .jpeg, .webp or .bmp, and stand in the folder of a class",
            f->left_out, f->first);
    out->files = f->files.names;
    out->n = (int64_t)f->files.n;
    f->files = (name_list){0};
    found_fini(f);
    if (err != PS_OK) ps_dataset_fini(out);
    return err;
}

ps_err ps_image_folder_list(const char *split, const char *classes, ps_dataset *out)
{
    found f = {0};
    memset(out, 0, sizeof *out);
    const ps_err err = list_classes(split, classes, &f, out);
    return give_files(err, &f, out);
}

ps_err ps_image_folder_list_all(const char *folder, ps_dataset *out)
{
    found f = {0};
    memset(out, 0, sizeof *out);
    ps_err err = add_class(folder, &f);
    if (err == PS_OK) err = check_empty(&f);
    if (err == PS_OK) err = set_labels(out, 0, f.files.n, 0);
    return give_files(err, &f, out);
}

ps_err ps_image_folder_names(const char *split, ps_class_names *out)
{
    listing in = {0};
    *out = (ps_class_names){0};
    const ps_err err = list_folder(split, &in);
    if (err == PS_OK) give_names(&in.folders, out);
    listing_fini(&in);
    return err;
}

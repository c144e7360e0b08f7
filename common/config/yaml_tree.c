#include "yaml_tree.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <yaml.h>

#include "mem.h"
#include "parse_text.h"
#include "regular_file.h"

enum {
    MAX_FILE_BYTES = 1 << 20,
    MAX_DEPTH = 64,
    MAX_NODES = 65536,
    MAX_TEXT_BYTES = 4 << 20, // of all scalars after aliases
    MAX_ANCHORS = 256,
    MAX_MEMBERS = 4096 // of a map: each new key is compared with those before it
};

static const char OVERRIDE[] = "--set";

/* The root owns the name that every node's file points to. */
typedef struct root_node {
    ps_yaml node;
    char *file;
} root_node;

typedef struct reader {
    yaml_parser_t parser;
    yaml_event_t event; // the present one; owned, empty when consumed
    const char *file;
    int n_nodes;
    size_t text_bytes;
    int n_anchors;
    struct {
        char *name;
        const ps_yaml *node;
    } anchors[MAX_ANCHORS];
} reader;

ps_err ps_yaml_error(const ps_yaml *at, const char *fmt, ...)
{
    char text[768];
    PS_PRINT(text, fmt);
    if (at && at->line > 0 && at->file != OVERRIDE)
        return ps_err_set(PS_ERR_CONFIG, "%s:%d: %s", at->file, at->line, text);
    return ps_err_set(PS_ERR_CONFIG, "%s: %s", at ? at->file : "configuration", text);
}

/* ---- nodes ---- */

static void node_fini(ps_yaml *node);

static void node_free(ps_yaml *node)
{
    if (!node) return;
    node_fini(node);
    free(node);
}

static void node_fini(ps_yaml *node)
{
    for (int i = 0; i < node->n_items; i++)
        node_free(node->items[i]);
    free(node->items);
    free(node->key);
    free(node->text);
    node->items = NULL;
    node->key = node->text = NULL;
    node->n_items = 0;
}

/* Appends item, and takes it in every case. The array doubles at powers of two. */
static ps_err tree_append(ps_yaml *parent, ps_yaml *item)
{
    int n = parent->n_items;
    if ((n & (n - 1)) == 0) {
        size_t room = n ? 2 * (size_t)n : 1;
        ps_yaml **items = realloc(parent->items, room * sizeof *items);
        if (!items) {
            node_free(item);
            return ps_err_set(PS_ERR_NOMEM, "no memory for a configuration");
        }
        parent->items = items;
    }
    parent->items[parent->n_items++] = item;
    return PS_OK;
}

static ps_yaml *tree_find(const ps_yaml *map, const char *key, size_t n)
{
    if (!map || map->kind != PS_YAML_MAP) return NULL;
    for (int i = 0; i < map->n_items; i++) {
        const char *k = map->items[i]->key;
        if (strncmp(k, key, n) == 0 && k[n] == '\0') return map->items[i];
    }
    return NULL;
}

static ps_err node_new(reader *r, ps_yaml_kind kind, int line, ps_yaml **out)
{
    const ps_yaml at = {.file = r->file, .line = line};
    if (++r->n_nodes > MAX_NODES)
        return ps_yaml_error(&at, "more than %d values (aliases counted)", MAX_NODES);
    PS_TRY(PS_NEW(out, 1, "configuration"));
    (*out)->kind = kind;
    (*out)->line = line;
    (*out)->file = r->file;
    return PS_OK;
}

/* Copies n bytes of text; a NUL among them is an error. */
static ps_err text_new(reader *r, const ps_yaml *at, const char *text, size_t n,
                       char **out)
{
    if (memchr(text, '\0', n))
        return ps_yaml_error(at, "a value contains a NUL character");
    r->text_bytes += n;
    if (r->text_bytes > MAX_TEXT_BYTES)
        return ps_yaml_error(at, "more than %d bytes of text (aliases counted)",
                             MAX_TEXT_BYTES);
    *out = strndup(text, n);
    return *out ? PS_OK : ps_err_set(PS_ERR_NOMEM, "no memory for a configuration");
}

/* ---- reading ---- */

static const char QUOTES[] = "a text that begins with * stands in quotes: '*.bias'";

static ps_err parser_error(const reader *r)
{
    const yaml_parser_t *p = &r->parser;
    const ps_yaml at = {.file = r->file, .line = (int)p->problem_mark.line + 1};
    if (p->error == YAML_MEMORY_ERROR)
        return ps_err_set(PS_ERR_NOMEM, "%s: no memory to read it", r->file);
    const char *problem = p->problem ? p->problem : "not YAML";
    if (p->error == YAML_READER_ERROR)
        return ps_err_set(PS_ERR_CONFIG, "%s: byte %zu: %s", r->file, p->problem_offset,
                          problem);
    // libyaml calls it so only within a plain scalar.
    if (strstr(problem, "tab character") ||
        (strstr(problem, "cannot start any token") && *p->buffer.pointer == '\t'))
        return ps_yaml_error(&at,
                             "bad YAML: a tab indents this line: indent with spaces");
    if (p->context && strstr(p->context, "alias"))
        return ps_yaml_error(&at, "bad YAML: %s: %s", problem, QUOTES);
    if (p->context) return ps_yaml_error(&at, "bad YAML: %s (%s)", problem, p->context);
    return ps_yaml_error(&at, "bad YAML: %s", problem);
}

/* Replaces the present event by the next one. */
static ps_err tree_next(reader *r)
{
    yaml_event_delete(&r->event);
    memset(&r->event, 0, sizeof r->event);
    return yaml_parser_parse(&r->parser, &r->event) ? PS_OK : parser_error(r);
}

static int event_line(const reader *r)
{
    return (int)r->event.start_mark.line + 1;
}

static ps_err read_node(reader *r, int depth, ps_yaml **out);

static ps_err copy_node(reader *r, const ps_yaml *from, int depth, ps_yaml **out)
{
    ps_yaml *node = NULL;
    if (depth > MAX_DEPTH)
        return ps_yaml_error(from, "nested deeper than %d levels", MAX_DEPTH);
    PS_TRY(node_new(r, from->kind, from->line, &node));
    ps_err err = PS_OK;
    if (from->text)
        PS_TRY_GOTO(text_new(r, from, from->text, strlen(from->text), &node->text), err,
                    out);
    for (int i = 0; i < from->n_items; i++) {
        const ps_yaml *inner = from->items[i];
        ps_yaml *copy = NULL;
        PS_TRY_GOTO(copy_node(r, inner, depth + 1, &copy), err, out);
        PS_TRY_GOTO(tree_append(node, copy), err, out);
        if (inner->key)
            PS_TRY_GOTO(text_new(r, from, inner->key, strlen(inner->key), &copy->key),
                        err, out);
    }
    *out = node;
    return PS_OK;
out:
    node_free(node);
    return err;
}

/* An anchor is known once its node is whole, so that no node can contain itself. */
static ps_err add_anchor(reader *r, const char *name, const ps_yaml *node)
{
    int i = 0;
    while (i < r->n_anchors && strcmp(r->anchors[i].name, name) != 0)
        i++;
    if (i == MAX_ANCHORS) return ps_yaml_error(node, "more than %d anchors", MAX_ANCHORS);
    if (i == r->n_anchors) {
        PS_TRY(ps_mem_strdup(&r->anchors[i].name, name));
        r->n_anchors++;
    }
    r->anchors[i].node = node;
    return PS_OK;
}

static ps_err read_alias(reader *r, int depth, ps_yaml **out)
{
    const char *name = (const char *)r->event.data.alias.anchor;
    const ps_yaml at = {.file = r->file, .line = event_line(r)};
    for (int i = 0; i < r->n_anchors; i++)
        if (strcmp(r->anchors[i].name, name) == 0)
            return copy_node(r, r->anchors[i].node, depth, out);
    return ps_yaml_error(&at, "unknown anchor *%.40s: %s", name, QUOTES);
}

static ps_err read_scalar(reader *r, ps_yaml *node)
{
    return text_new(r, node, (const char *)r->event.data.scalar.value,
                    r->event.data.scalar.length, &node->text);
}

static ps_err tree_read_list(reader *r, int depth, ps_yaml *node)
{
    for (;;) {
        ps_yaml *item = NULL;
        PS_TRY(tree_next(r));
        if (r->event.type == YAML_SEQUENCE_END_EVENT) return PS_OK;
        PS_TRY(read_node(r, depth + 1, &item));
        PS_TRY(tree_append(node, item));
    }
}

static ps_err check_new_key(const ps_yaml *at, const char *key, const ps_yaml *other)
{
    if (strcmp(key, "<<") == 0)
        return ps_yaml_error(at, "YAML's merge key << is not read: write the keys here");
    if (!other) return PS_OK;
    return ps_yaml_error(at, "%.60s: given twice, in line %d, too", key, other->line);
}

static ps_err read_map(reader *r, int depth, ps_yaml *node)
{
    for (;;) {
        ps_yaml *item = NULL;
        char *key = NULL;
        PS_TRY(tree_next(r));
        if (r->event.type == YAML_MAPPING_END_EVENT) return PS_OK;
        const ps_yaml at = {.file = r->file, .line = event_line(r)};
        if (r->event.type != YAML_SCALAR_EVENT)
            return ps_yaml_error(&at, "a key has to be a word");
        if (node->n_items == MAX_MEMBERS)
            return ps_yaml_error(&at, "more than %d keys in a map", MAX_MEMBERS);
        PS_TRY(text_new(r, &at, (const char *)r->event.data.scalar.value,
                        r->event.data.scalar.length, &key));
        ps_err err = check_new_key(&at, key, tree_find(node, key, strlen(key)));
        if (err == PS_OK) err = tree_next(r);
        if (err == PS_OK) err = read_node(r, depth + 1, &item);
        if (err != PS_OK) {
            free(key);
            return err;
        }
        free(item->key);
        item->key = key;
        item->line = at.line; // the key's line: a block value begins below it
        PS_TRY(tree_append(node, item));
    }
}

static bool kind_of_event(yaml_event_type_t type, ps_yaml_kind *kind)
{
    *kind = type == YAML_SEQUENCE_START_EVENT  ? PS_YAML_LIST
            : type == YAML_MAPPING_START_EVENT ? PS_YAML_MAP
                                               : PS_YAML_SCALAR;
    return *kind != PS_YAML_SCALAR || type == YAML_SCALAR_EVENT;
}

static const char *event_anchor(const yaml_event_t *e)
{
    const yaml_char_t *name = e->type == YAML_SCALAR_EVENT ? e->data.scalar.anchor
                              : e->type == YAML_SEQUENCE_START_EVENT
                                  ? e->data.sequence_start.anchor
                                  : e->data.mapping_start.anchor;
    return (const char *)name;
}

/* Reads the node that begins with the present event. *out is owned by the caller. */
static ps_err read_node(reader *r, int depth, ps_yaml **out)
{
    ps_yaml *node = NULL;
    ps_yaml_kind kind;
    const ps_yaml at = {.file = r->file, .line = event_line(r)};
    if (r->event.type == YAML_ALIAS_EVENT) return read_alias(r, depth, out);
    if (!kind_of_event(r->event.type, &kind)) return ps_yaml_error(&at, "bad YAML");
    if (depth > MAX_DEPTH)
        return ps_yaml_error(&at, "nested deeper than %d levels", MAX_DEPTH);
    PS_TRY(node_new(r, kind, at.line, &node));
    ps_err err = PS_OK;
    char *anchor = NULL;
    if (event_anchor(&r->event))
        PS_TRY_GOTO(ps_mem_strdup(&anchor, event_anchor(&r->event)), err, out);
    if (kind == PS_YAML_SCALAR) err = read_scalar(r, node);
    if (kind == PS_YAML_LIST) err = tree_read_list(r, depth, node);
    if (kind == PS_YAML_MAP) err = read_map(r, depth, node);
    if (err == PS_OK && anchor) err = add_anchor(r, anchor, node);
out:
    free(anchor);
    if (err == PS_OK)
        *out = node;
    else
        node_free(node);
    return err;
}

/* One document, or an empty stream, which stands for an empty map. */
static ps_err read_stream(reader *r, ps_yaml **out)
{
    PS_TRY(tree_next(r)); // stream start
    PS_TRY(tree_next(r));
    if (r->event.type == YAML_STREAM_END_EVENT) return node_new(r, PS_YAML_MAP, 1, out);
    PS_TRY(tree_next(r));
    PS_TRY(read_node(r, 1, out));
    PS_TRY(tree_next(r)); // document end
    PS_TRY(tree_next(r));
    const ps_yaml at = {.file = r->file, .line = event_line(r)};
    if (r->event.type != YAML_STREAM_END_EVENT)
        return ps_yaml_error(&at, "a second document in the same file");
    return PS_OK;
}

/* Parses text into a tree whose nodes borrow file. *out is owned by the caller. */
static ps_err tree_parse(const char *file, const char *text, size_t bytes, ps_yaml **out)
{
    ps_yaml *tree = NULL;
    reader *r;
    if (bytes > MAX_FILE_BYTES)
        return ps_err_set(PS_ERR_CONFIG, "%s: larger than %d bytes", file,
                          MAX_FILE_BYTES);
    PS_TRY(PS_NEW(&r, 1, "configuration"));
    r->file = file;
    if (!yaml_parser_initialize(&r->parser)) {
        free(r);
        return ps_err_set(PS_ERR_NOMEM, "%s: no memory to read it", file);
    }
    yaml_parser_set_input_string(&r->parser, (const unsigned char *)text, bytes);
    ps_err err = read_stream(r, &tree);
    yaml_event_delete(&r->event);
    yaml_parser_delete(&r->parser);
    for (int i = 0; i < r->n_anchors; i++)
        free(r->anchors[i].name);
    free(r);
    if (err == PS_OK)
        *out = tree;
    else
        node_free(tree);
    return err;
}

static void set_file(ps_yaml *node, const char *file, bool keep_lines)
{
    node->file = file;
    if (!keep_lines) node->line = 0;
    for (int i = 0; i < node->n_items; i++)
        set_file(node->items[i], file, keep_lines);
}

ps_err ps_yaml_parse(const char *name, const char *text, size_t bytes, ps_yaml **out)
{
    root_node *root;
    ps_yaml *tree = NULL;
    *out = NULL;
    PS_TRY(tree_parse(name, text, bytes, &tree));
    ps_err err = PS_NEW(&root, 1, "configuration");
    if (err == PS_OK && (err = ps_mem_strdup(&root->file, name)) != PS_OK) free(root);
    if (err != PS_OK) {
        node_free(tree);
        return err;
    }
    root->node = *tree;
    free(tree);
    set_file(&root->node, root->file, true);
    *out = &root->node;
    return PS_OK;
}

ps_err ps_yaml_load(const char *file, ps_yaml **out)
{
    char *text;
    FILE *f = NULL;
    *out = NULL;
    PS_TRY(ps_regular_file_stream(file, "r", &f));
    ps_err err = ps_mem_map_zeroed(&text, MAX_FILE_BYTES + 1, file);
    if (err != PS_OK) {
        fclose(f);
        return err;
    }
    size_t n = fread(text, 1, MAX_FILE_BYTES + 1, f);
    if (ferror(f))
        err = ps_err_errno(PS_ERR_IO, "%s", file);
    else
        err = ps_yaml_parse(file, text, n, out);
    fclose(f);
    ps_mem_unmap(text, MAX_FILE_BYTES + 1);
    return err;
}

void ps_yaml_destroy(ps_yaml **tree)
{
    if (!*tree) return;
    root_node *root = (root_node *)*tree; // node is its first member
    node_fini(&root->node);
    free(root->file);
    free(root);
    *tree = NULL;
}

/* ---- access ---- */

const ps_yaml *ps_yaml_path(const ps_yaml *root, const char *path)
{
    const ps_yaml *at = root;
    while (at && *path) {
        size_t n = strcspn(path, ".");
        at = tree_find(at, path, n);
        path += n + (path[n] == '.');
    }
    return at;
}

/* The value of an override: flow lists, flow maps and quoted words are YAML, everything
 * else is taken literally, so that a path may contain ": " or " #". */
static ps_err parse_value(const char *value, ps_yaml **out)
{
    if (*value && strchr("[{\"'", *value))
        return tree_parse(OVERRIDE, value, strlen(value), out);
    PS_TRY(PS_NEW(out, 1, "configuration"));
    (*out)->kind = PS_YAML_SCALAR;
    ps_err err = ps_mem_strdup(&(*out)->text, value);
    if (err != PS_OK) node_free(*out);
    return err;
}

/* The member that the n bytes of key name. It is made as an empty map when it is missing.
 * place: of what needs it. */
static ps_err tree_enter(ps_yaml *map, const char *key, size_t n, const ps_yaml *place,
                         ps_yaml **out)
{
    if (n == 0) return ps_yaml_error(place, "a key with an empty part");
    if (map->kind == PS_YAML_SCALAR && map->text[0] == '\0') { // a section without keys
        free(map->text);
        map->text = NULL;
        map->kind = PS_YAML_MAP;
    }
    if (map->kind != PS_YAML_MAP)
        return ps_yaml_error(place, "%.*s: its parent is not a map", (int)n, key);
    *out = tree_find(map, key, n);
    if (*out) return PS_OK;
    ps_yaml *made;
    PS_TRY(PS_NEW(&made, 1, "configuration"));
    made->kind = PS_YAML_MAP;
    made->file = place->file;
    made->line = place->line;
    made->key = strndup(key, n);
    if (!made->key) {
        free(made);
        return ps_err_set(PS_ERR_NOMEM, "no memory for a configuration");
    }
    *out = made;
    return tree_append(map, made);
}

/* Makes value the node at the path, and takes it. */
static ps_err tree_put(ps_yaml *root, const char *path, ps_yaml *value)
{
    const ps_yaml place = {.file = value->file, .line = value->line};
    ps_yaml *at = root;
    ps_err err = PS_OK;
    for (int depth = 1; err == PS_OK; depth++) {
        const size_t n = strcspn(path, ".");
        err = depth > MAX_DEPTH ? ps_yaml_error(&place, "the key has too many parts")
                                : tree_enter(at, path, n, &place, &at);
        if (path[n] == '\0') break;
        path += n + 1;
    }
    if (err != PS_OK) {
        node_free(value);
        return err;
    }
    free(value->key);
    value->key = at->key;
    at->key = NULL;
    node_fini(at);
    *at = *value;
    free(value);
    return PS_OK;
}

ps_err ps_yaml_set(ps_yaml **root, const char *path, const char *value)
{
    ps_yaml *parsed = NULL;
    if (!*root) PS_TRY(ps_yaml_parse(OVERRIDE, "", 0, root));
    ps_err err = parse_value(value, &parsed);
    if (err != PS_OK) return ps_err_prefix(err, "%.80s=%.80s", path, value);
    set_file(parsed, OVERRIDE, false);
    return tree_put(*root, path, parsed);
}

ps_err ps_yaml_split_keys(ps_yaml *root)
{
    int i = 0;
    while (root->kind == PS_YAML_MAP && i < root->n_items) {
        ps_yaml *item = root->items[i];
        if (!strchr(item->key, '.')) {
            i++;
            continue;
        }
        const ps_yaml *other = ps_yaml_path(root, item->key);
        if (other)
            return ps_yaml_error(item, "%.60s: given twice, in line %d, too", item->key,
                                 other->line);
        root->n_items--;
        memmove(&root->items[i], &root->items[i + 1],
                (size_t)(root->n_items - i) * sizeof *root->items);
        char *path = item->key;
        item->key = NULL;
        ps_err err = tree_put(root, path, item);
        free(path);
        if (err != PS_OK) return err;
    }
    return PS_OK;
}

/* ---- scalars ---- */

static const char *tree_label(const ps_yaml *at)
{
    return at->key ? at->key : "value";
}

static ps_err tree_is_wrong(const ps_yaml *at, const char *wanted)
{
    if (at->kind == PS_YAML_SCALAR)
        return ps_yaml_error(at, "%s: '%.60s' is not %s", tree_label(at), at->text,
                             wanted);
    return ps_yaml_error(at, "%s: has to be %s, not a %s", tree_label(at), wanted,
                         at->kind == PS_YAML_LIST ? "list" : "map");
}

ps_err ps_yaml_int(const ps_yaml *at, long long min, long long max, long long *out)
{
    int64_t v;
    if (at->kind != PS_YAML_SCALAR || !ps_parse_int(at->text, &v))
        return tree_is_wrong(at, "a whole number");
    if (v < min || v > max)
        return ps_yaml_error(at, "%s: %lld is not within %lld .. %lld", tree_label(at),
                             (long long)v, min, max);
    *out = v;
    return PS_OK;
}

ps_err ps_yaml_double(const ps_yaml *at, double *out)
{
    if (at->kind != PS_YAML_SCALAR || !ps_parse_double(at->text, out))
        return tree_is_wrong(at, "a finite number");
    return PS_OK;
}

ps_err ps_yaml_bool(const ps_yaml *at, int *out)
{
    bool v;
    if (at->kind != PS_YAML_SCALAR || !ps_parse_bool(at->text, &v))
        return tree_is_wrong(at, "true or false");
    *out = v;
    return PS_OK;
}

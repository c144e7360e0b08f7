#include "mp_map.h"

#include <math.h>
#include <string.h>

static void map_write_list(ps_mp_writer *w, const ps_map_field *f,
                           const ps_map_list *list)
{
    ps_mp_write_array(w, list->n);
    for (size_t i = 0; i < list->n; i++)
        if (f->kind == PS_MAP_NUMBERS)
            ps_mp_write_uint(w, ((const uint64_t *)list->items)[i]);
        else
            ps_map_write(w, f->of, (const char *)list->items + i * f->of->item_bytes);
}

static void map_write_value(ps_mp_writer *w, const ps_map_field *f, const void *at)
{
    const ps_map_bytes *bytes = at;
    switch (f->kind) {
    case PS_MAP_U64:
        ps_mp_write_uint(w, *(const uint64_t *)at);
        break;
    case PS_MAP_U32:
        ps_mp_write_uint(w, *(const uint32_t *)at);
        break;
    case PS_MAP_BOOL:
        ps_mp_write_bool(w, *(const bool *)at);
        break;
    case PS_MAP_DOUBLE:
        ps_mp_write_double(w, *(const double *)at);
        break;
    case PS_MAP_FLOAT:
        ps_mp_write_double(w, *(const float *)at);
        break;
    case PS_MAP_BYTES:
        ps_mp_write_bin(w, bytes->at, bytes->n);
        break;
    default:
        map_write_list(w, f, at);
    }
}

void ps_map_write(ps_mp_writer *w, const ps_map *map, const void *from)
{
    ps_mp_write_map(w, (size_t)map->n);
    for (int i = 0; i < map->n; i++) {
        ps_mp_write_str(w, map->fields[i].name);
        map_write_value(w, &map->fields[i], (const char *)from + map->fields[i].offset);
    }
}

static ps_err map_read(ps_mp_reader *r, const ps_map *map, const char *what, void *to);

static ps_err map_read_list(ps_mp_reader *r, const ps_map_field *f, const char *what,
                            ps_map_list *list)
{
    list->n = ps_mp_read_array(r, list->n);
    for (size_t i = 0; i < list->n; i++)
        if (f->kind == PS_MAP_NUMBERS)
            ((uint64_t *)list->items)[i] = ps_mp_read_uint(r, UINT64_MAX);
        else
            PS_TRY(map_read(r, f->of, what, (char *)list->items + i * f->of->item_bytes));
    return PS_OK;
}

static ps_err map_read_value(ps_mp_reader *r, const ps_map_field *f, const char *what,
                             void *at)
{
    ps_map_bytes *bytes = at;
    switch (f->kind) {
    case PS_MAP_U64:
        *(uint64_t *)at = ps_mp_read_uint(r, f->most);
        break;
    case PS_MAP_U32:
        *(uint32_t *)at = (uint32_t)ps_mp_read_uint(r, f->most);
        break;
    case PS_MAP_BOOL:
        *(bool *)at = ps_mp_read_bool(r);
        break;
    case PS_MAP_DOUBLE:
        *(double *)at = ps_mp_read_double(r);
        r->failed |= !isfinite(*(double *)at);
        break;
    case PS_MAP_FLOAT:
        *(float *)at = (float)ps_mp_read_double(r);
        r->failed |= !isfinite(*(float *)at);
        break;
    case PS_MAP_BYTES:
        bytes->at = ps_mp_read_bin(r, &bytes->n, (size_t)f->most);
        break;
    default:
        PS_TRY(map_read_list(r, f, what, at));
    }
    return PS_OK;
}

static ps_err map_error(const char *what, const char *name, const char *why)
{
    return ps_err_set(PS_ERR_PROTOCOL, "%s: %s%s", what, name, why);
}

static int map_find(const ps_map *map, const char *name)
{
    for (int i = 0; i < map->n; i++)
        if (strcmp(map->fields[i].name, name) == 0) return i;
    return -1;
}

static ps_err map_read(ps_mp_reader *r, const ps_map *map, const char *what, void *to)
{
    char name[PS_MAP_NAME_BYTES];
    uint64_t seen = 0;
    const size_t n = ps_mp_read_map(r, SIZE_MAX);
    if (r->failed) return map_error(what, "", "no map");
    for (size_t k = 0; k < n; k++) {
        ps_mp_read_str(r, name, sizeof name);
        if (r->failed) return map_error(what, "", "a name is cut, too long or no text");
        const int i = map_find(map, name);
        if (i < 0) return map_error(what, name, " is unknown");
        if (seen >> i & 1) return map_error(what, name, " comes twice");
        seen |= UINT64_C(1) << i;
        const ps_map_field *f = &map->fields[i];
        PS_TRY(map_read_value(r, f, what, (char *)to + f->offset));
        if (r->failed)
            return map_error(what, name, " is out of range, or of another kind");
    }
    for (int i = 0; i < map->n; i++)
        if (!(seen >> i & 1)) return map_error(what, map->fields[i].name, " is missing");
    return PS_OK;
}

ps_err ps_map_read(const void *value, size_t bytes, const ps_map *map, const char *what,
                   void *to)
{
    ps_mp_reader r;
    ps_mp_reader_init(&r, value, bytes);
    PS_TRY(map_read(&r, map, what, to));
    return ps_mp_reader_end(&r) ? PS_OK : map_error(what, "", "more than a map");
}

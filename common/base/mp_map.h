/* Structs as MessagePack maps of named values. One table says which members of a struct
 * travel, under which name; it writes the map and reads it. So nothing has a meaning by
 * its position, and no name can be written and forgotten when reading. */
#ifndef PS_MP_MAP_H
#define PS_MP_MAP_H

#include "mp.h"

typedef enum ps_map_kind {
    PS_MAP_U64,
    PS_MAP_U32, // or an enum
    PS_MAP_BOOL,
    PS_MAP_DOUBLE,  // finite
    PS_MAP_FLOAT,   // likewise; travels as a double
    PS_MAP_BYTES,   // ps_map_bytes
    PS_MAP_NUMBERS, // ps_map_list of uint64_t
    PS_MAP_LIST     // ps_map_list of structs, a map each
} ps_map_kind;

typedef struct ps_map_bytes {
    const void *at; // borrowed; when read, from the message
    size_t n;
} ps_map_bytes;

typedef struct ps_map_list {
    void *items; // the caller's
    size_t n;    // items; before a map is read: how many there is room for
} ps_map_list;

struct ps_map;

typedef struct ps_map_field {
    const char *name; // shorter than PS_MAP_NAME_BYTES
    size_t offset;
    ps_map_kind kind;
    uint64_t most;           // of U64 and U32, and of BYTES how many
    const struct ps_map *of; // LIST
} ps_map_field;

typedef struct ps_map {
    const ps_map_field *fields;
    int n;             // at most 64
    size_t item_bytes; // of the struct, in a list
} ps_map;

enum { PS_MAP_NAME_BYTES = 32 };

#define PS_MAP_FIELD(type, member, kind, most)                                           \
    {                                                                                    \
#member, offsetof(type, member), PS_MAP_##kind, most, NULL                       \
    }
/* Of an array of fields. */
#define PS_MAP_OF(fields, type)                                                          \
    {                                                                                    \
        fields, (int)(sizeof fields / sizeof *fields), sizeof(type)                      \
    }

void ps_map_write(ps_mp_writer *w, const ps_map *map, const void *from);

/* Reads exactly one map. PROTOCOL: "WHAT: NAME ..." when a name is missing, unknown or
 * there twice, or its value is of another kind or out of range. What else is in `to`
 * stays. Does not allocate. */
ps_err ps_map_read(const void *value, size_t bytes, const ps_map *map, const char *what,
                   void *to);

#endif

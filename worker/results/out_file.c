#include "out_file.h"

#include <unistd.h>

#include "new_file.h"

ps_err ps_out_file_open(ps_out_file *o, const ps_run_dir *dir, const char *name,
                        bool overwrite)
{
    PS_TRY(ps_run_dir_path(dir, name, o->path));
    if (!overwrite && access(o->path, F_OK) == 0)
        return ps_err_set(PS_ERR_IO,
                          "%s is there already: give --overwrite, or another "
                          "--out",
                          o->path);
    if ((size_t)snprintf(o->temporary, sizeof o->temporary, "%s.tmp", o->path) >=
        sizeof o->temporary)
        return ps_err_set(PS_ERR_IO, "%s: the name is too long", o->path);
    int fd;
    PS_TRY(ps_new_file_open(o->temporary, &fd));
    o->file = fdopen(fd, "wb");
    if (o->file) return PS_OK;
    close(fd);
    return ps_err_errno(PS_ERR_IO, "%s", o->temporary);
}

ps_err ps_out_file_keep(ps_out_file *o)
{
    FILE *file = o->file;
    o->file = NULL;
    bool failed = ferror(file) != 0;
    failed |= fclose(file) != 0;
    if (!failed && rename(o->temporary, o->path) == 0) return PS_OK;
    ps_err err = ps_err_errno(PS_ERR_IO, "writing %s", o->path);
    unlink(o->temporary);
    return err;
}

void ps_out_file_drop(ps_out_file *o)
{
    if (!o->file) return;
    fclose(o->file);
    o->file = NULL;
    unlink(o->temporary);
}

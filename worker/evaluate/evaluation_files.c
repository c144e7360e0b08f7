#include "evaluation_files.h"

#include "confusion_picture.h"
#include "run_dir.h"

static ps_err evaluation_write_one(const ps_confusion *c, const ps_run_dir *dir,
                                   const char *name,
                                   void (*write)(const ps_confusion *c, FILE *out))
{
    ps_out_file file = {0};
    ps_err err = ps_out_file_open(&file, dir, name, true);
    if (err == PS_OK) {
        write(c, file.file);
        err = ps_out_file_keep(&file);
    }
    return err;
}

ps_err ps_evaluation_write(const ps_evaluator *e, const ps_run_dir *dir)
{
    const ps_confusion *c = &e->confusion;
    if (c->n == 0 || c->samples == 0) return PS_OK;
    PS_TRY(evaluation_write_one(c, dir, "evaluation.json", ps_confusion_write_json));
    if (!c->has_matrix) return PS_OK;
    return evaluation_write_one(c, dir, "evaluation.svg", ps_confusion_write_svg);
}

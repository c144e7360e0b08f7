#include "evaluation_files.h"

#include "confusion_picture.h"
#include "run_dir.h"

static ps_err evaluation_write_one(const ps_figures *f, const ps_run_dir *dir,
                                   const char *name,
                                   void (*write)(const ps_figures *f, FILE *out))
{
    ps_out_file file = {0};
    ps_err err = ps_out_file_open(&file, dir, name, true);
    if (err == PS_OK) {
        write(f, file.file);
        err = ps_out_file_keep(&file);
    }
    return err;
}

static void evaluation_write_picture(const ps_figures *f, FILE *out)
{
    ps_confusion_write_svg(&f->confusion, out);
}

ps_err ps_evaluation_write(const ps_evaluator *e, const ps_run_dir *dir)
{
    const ps_figures *f = &e->figures;
    if (ps_figures_measure(f).samples == 0) return PS_OK;
    PS_TRY(evaluation_write_one(f, dir, "evaluation.json", ps_figures_write_json));
    if (!f->confusion.has_matrix) return PS_OK;
    return evaluation_write_one(f, dir, "evaluation.svg", evaluation_write_picture);
}

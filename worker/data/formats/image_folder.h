/* Pictures in folders, as torchvision's ImageFolder has them:
 *
 *   SPLIT/CLASS/[FOLDER/ ...]NAME.png|jpg|jpeg|webp|bmp
 *
 * Every folder in SPLIT is a class; a class's number is its place in the order of the
 * names' bytes. A class's files are in the order of their folders, then of their names.
 * The endings may be in capitals. Links to folders are followed. The set's doubts tell of
 * other files, unless they are hidden. */
#ifndef PS_IMAGE_FOLDER_H
#define PS_IMAGE_FOLDER_H

#include "samples.h"

/* Lists the files and labels of the folder split; out->dims is the caller's to set.
 * classes: the folder whose classes count: the training split's, so that a split which
 * lacks a class does not give other numbers to the rest. IO, or FORMAT when there is no
 * class, a class has no picture, or split has one that classes lacks; names the folder.
 * NOMEM. out is zeroed on failure. out->names are those of the classes. */
ps_err ps_image_folder_list(const char *split, const char *classes, ps_dataset *out);

/* The same for all pictures in folder, and in folders within it, whose label is 0. */
ps_err ps_image_folder_list_all(const char *folder, ps_dataset *out);

/* The names of the classes of a training split's folder. IO, NOMEM. */
ps_err ps_image_folder_names(const char *split, ps_class_names *out);

#endif

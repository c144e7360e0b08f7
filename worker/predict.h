/* ps-worker --predict: what a trained model says of samples, labelled or not. */
#ifndef PS_PREDICT_H
#define PS_PREDICT_H

#include "cli.h"

/* Runs the model of config, with the weights of train.init, on the samples of the file
 * cli->predict (npy: x alone, as data.kind npy has it), on the pictures of that folder
 * (ps_dataset_of_folder), or on the test set ("test").
 * Writes into the folder --out (predictions of another run are kept without
 * --overwrite: IO):
 *
 *   predictions.npy  (samples, outputs) float32: probabilities where the loss is
 *                    cross_entropy, nll or bce_with_logits; else the outputs
 *   predictions.csv  index of the sample, class (the largest output), its probability or
 *                    output; where the model is trained on numbers, all outputs; of
 *                    pictures also the file
 *
 *   confusion.json   of a test set with classes: the matrix of labels and classes, and
 * what follows confusion.svg    from it (confusion.h); the same as a picture
 *
 * Nothing is left of predictions that fail or are interrupted. */
ps_err ps_predict(const ps_cli *cli, const ps_config *config, int threads);

#endif

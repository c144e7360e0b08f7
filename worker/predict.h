/* ps-worker --predict: what a trained model says of samples, labelled or not. */
#ifndef PS_PREDICT_H
#define PS_PREDICT_H

#include "cli.h"

/* Runs the model of config, with the weights of train.init, on the samples of the file
 * cli->predict (npy: x alone, as data.kind npy has it), or on the test set ("test").
 * Writes into the folder --out (predictions of another run are kept without
 * --overwrite: IO):
 *
 *   predictions.npy  (samples, outputs) float32: the classes' probabilities where the
 *                    loss is cross_entropy or nll; with mse the outputs
 *   predictions.csv  index of the sample, class (the largest output), its probability or
 *                    output
 *
 *   confusion.json   of the test set: the matrix of labels and classes, and what follows
 *   confusion.svg    from it (confusion.h); the same as a picture
 *
 * Nothing is left of predictions that fail or are interrupted. */
ps_err ps_predict(const ps_cli *cli, const ps_config *config, int threads);

#endif

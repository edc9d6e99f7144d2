"""Run, resume and summarise Markov chains of a masked model; score sentences."""

"""Where two models' computations part: hyper-parameters, errors of modules, floors, suspects."""

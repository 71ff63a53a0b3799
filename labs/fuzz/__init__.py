"""Random programs of torch operators, run by our backend and by ``aot_eager``."""

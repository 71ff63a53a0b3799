"""Facts about torch and GE that everything else stands on; no registry, no graph under construction."""

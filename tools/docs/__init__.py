"""The documentation site: pages that are generated, figures, the build."""

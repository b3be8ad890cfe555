"""Programs that use the service with packages that others wrote; each is run as `python -m serve_app.examples.NAME`."""

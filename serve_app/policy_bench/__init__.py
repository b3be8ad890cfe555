"""The policies compared on a real engine: traffic, clients, calibration, and the twin's forecast of the same run."""

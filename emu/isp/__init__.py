"""In-storage processing: cores in the controller, processing elements on the dies."""

from taliesin.cli import main

main()
